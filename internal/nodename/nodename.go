// Package nodename returns the name of this node in Kubernetes if none is configured.
package nodename

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// Host returns the name that the kubelet derives from the host's: in lower case, without spaces
// around it.
func Host() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("the host name cannot be read: %w", err)
	}
	if host = strings.ToLower(strings.TrimSpace(host)); host == "" {
		return "", errors.New("the host name is empty")
	}
	return host, nil
}
