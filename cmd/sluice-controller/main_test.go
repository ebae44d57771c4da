package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/trusted"
	"sluice.dev/sluice/internal/usage"
)

// TestKubeconfigIsTrusted: the controller does not start with a kubeconfig that other users can
// write: they could make it use their API server.
func TestKubeconfigIsTrusted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chmod(file, 0o666)); err != nil {
		t.Fatal(err)
	}
	c := command()
	c.SetArgs([]string{"--namespace", "n", "--listen", "", "--kubeconfig", file})
	var refused *trusted.Refusal
	if err := c.ExecuteContext(t.Context()); !errors.As(err, &refused) || refused.Path != file {
		t.Errorf("%v, want a refusal of %s", err, file)
	}
}

// TestNamespaceOfMetalLB: an empty name is rejected. If it meant all namespaces, pools of any user
// would count; if it meant none, Services would lose their addresses. An explicit flag turns
// MetalLB's pools off.
func TestNamespaceOfMetalLB(t *testing.T) {
	for _, test := range []struct {
		pools  string
		refuse bool
	}{{"true", true}, {"false", false}} {
		c := command()
		c.SetArgs([]string{"--namespace", "n", "--listen", "", "--kubeconfig", "none", "--metallb-namespace", "",
			"--metallb-pools=" + test.pools})
		err := c.ExecuteContext(t.Context())
		if err == nil || strings.Contains(err.Error(), "--metallb-namespace is empty") != test.refuse {
			t.Errorf("--metallb-pools=%s: %v", test.pools, err)
		}
	}
}

// TestExitCodes: wrong usage and failure differ, and misspelt flags get a suggestion.
func TestExitCodes(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--lese", "x"}, usage.Wrong, "did you mean --lease?"},
		{[]string{"--namespace", "n", "--lease-duration", "1ms"}, usage.Wrong, "--lease-duration is 1ms"},
		{[]string{"--namespace", "n", "--listen", "", "--kubeconfig", none}, usage.Failure, none},
	} {
		c := command()
		c.SetArgs(test.args)
		code, err := usage.Execute(t.Context(), c)
		if code != test.code || err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: exit %d, %v, want %d, %s", test.args, code, err, test.code, test.want)
		}
	}
}
