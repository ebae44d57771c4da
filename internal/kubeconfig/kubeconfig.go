// Package kubeconfig reads how to reach the API server: from a file, or from the pod's service
// account.
package kubeconfig

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"sluice.dev/sluice/internal/trusted"
)

// Load reads a kubeconfig or, if file is "", the pod's service account. Errors name setting, the
// setting that holds the file's name. Load rejects a kubeconfig, and files that it or the service
// account names, if others could change them (package trusted): they decide which API server the
// process trusts. client-go reads them again later, from the same directories.
func Load(file, setting string) (*rest.Config, error) {
	if err := unchanged(setting, file); err != nil { // before it is read
		return nil, err
	}
	c, err := read(file, setting)
	if err != nil {
		return nil, err
	}
	if err := unchanged(setting, c.BearerTokenFile, c.CAFile, c.CertFile, c.KeyFile); err != nil {
		return nil, err
	}
	return c, nil
}

func read(file, setting string) (*rest.Config, error) {
	if file == "" {
		c, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("%s is empty, so the pod's service account is used: %w; outside of a pod, set it "+
				"to a kubeconfig file", setting, err)
		}
		return c, nil
	}
	c, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", setting, file, err)
	}
	return c, nil
}

// unchanged refuses files that others could change; "" is none.
func unchanged(setting string, files ...string) error {
	for _, path := range files {
		if path == "" {
			continue
		}
		f, err := trusted.Open(path)
		if err != nil {
			return fmt.Errorf("%s: %w", setting, err)
		}
		f.Close()
	}
	return nil
}
