// Package kubeconfig finds the API server, from a file or the pod's service account.
package kubeconfig

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Load reads a kubeconfig or, if file is "", the pod's service account. Errors name the setting by
// which the operator chose the file.
func Load(file, setting string) (*rest.Config, error) {
	if file == "" {
		c, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("%s is empty, so the pod's service account is used: %w; outside of a pod, name a "+
				"kubeconfig file", setting, err)
		}
		return c, nil
	}
	c, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", setting, file, err)
	}
	return c, nil
}
