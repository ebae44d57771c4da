package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/trusted"
)

// TestSources: without --config the API server has the objects, as in the chart, and with it the
// file.
func TestSources(t *testing.T) {
	for _, flag := range []string{"--kubeconfig", "--config"} {
		missing := filepath.Join(t.TempDir(), "missing.yaml")
		c := command()
		c.SetArgs([]string{"--state-dir", t.TempDir(), "--node-name", "n", flag, missing})
		if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), flag) ||
			!strings.Contains(err.Error(), missing) {
			t.Errorf("%s %s: %v, want an error about that file", flag, missing, err)
		}
	}
}

// TestFilesAreTrusted: neither a kubeconfig nor a file of objects that others may write is read: it
// says which addresses routers send here.
func TestFilesAreTrusted(t *testing.T) {
	for _, flag := range []string{"--kubeconfig", "--config"} {
		file := filepath.Join(t.TempDir(), "file")
		if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chmod(file, 0o666)); err != nil {
			t.Fatal(err)
		}
		c := command()
		c.SetArgs([]string{"--state-dir", t.TempDir(), "--node-name", "n", "--listen", "", flag, file})
		var refused *trusted.Refusal
		if err := c.ExecuteContext(t.Context()); !errors.As(err, &refused) || refused.Path != file {
			t.Errorf("%s: %v, want a refusal of %s", flag, err, file)
		}
	}
}

// TestFlagsThatAreRefused: each is named.
func TestFlagsThatAreRefused(t *testing.T) {
	for flag, value := range map[string]string{
		"--hold": "1h", "--drain-delay": "-1s", "--log": "xml", "--router-id": "2001:db8::1",
		"--metallb-namespace": "",
	} {
		c := command()
		c.SetArgs([]string{"--state-dir", t.TempDir(), "--config", "none", flag, value})
		if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), flag+" is ") {
			t.Errorf("%s %s: %v", flag, value, err)
		}
	}
}
