package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/trusted"
	"sluice.dev/sluice/internal/usage"
	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/cluster/clustertest"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
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

func TestMain(m *testing.M) { machine.RunMain(m, main) }

// TestNobodyReadsTheLog: a controller whose standard error is a full pipe without a reader, or a
// closed one, leads, gives Services their addresses, and ends.
func TestNobodyReadsTheLog(t *testing.T) {
	clustertest.Need(t)
	ctx, cancel := context.WithTimeout(t.Context(), machine.Slower(5*time.Minute))
	defer cancel()
	api := clustertest.Start(ctx, t, cluster.Config{})
	clustertest.Kinds(ctx, t, api, "../../deploy/chart/files/addresspools.yaml")
	kubeconfig, err := api.Kubeconfig(api.Admin(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Apply(ctx, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: log}\n---\n"+
		"apiVersion: sluice.dev/v1alpha1\nkind: AddressPool\nmetadata: {name: public}\n"+
		"spec: {addresses: [203.0.113.0/24]}\n")); err != nil {
		t.Fatal(err)
	}
	for name, gone := range map[string]bool{"full": false, "gone": true} {
		t.Run(name, func(t *testing.T) {
			c, err := machine.StartUnread(gone, "--kubeconfig", kubeconfig, "--namespace", "log", "--lease", name,
				"--listen", "")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for i := range 3 {
				hasAddress(ctx, t, api, fmt.Sprintf("%s-%d", name, i))
			}
			if err := c.End(machine.Slower(10 * time.Second)); err != nil {
				t.Error(err)
			}
		})
	}
}

// hasAddress creates a Service, and waits until it has an address.
func hasAddress(ctx context.Context, t *testing.T, api *cluster.Cluster, name string) {
	t.Helper()
	s := cluster.NewService("log", name, []corev1.ServicePort{{Port: 80}})
	s.Spec.Type, s.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeLoadBalancer, new(bool)
	services := api.Client().CoreV1().Services(s.Namespace)
	if _, err := services.Create(ctx, s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := topo.Until(ctx, machine.Slower(30*time.Second), 20*time.Millisecond, func(ctx context.Context) error {
		s, err := services.Get(ctx, name, metav1.GetOptions{})
		if err == nil && len(s.Status.LoadBalancer.Ingress) == 0 {
			err = errors.New("it has no address")
		}
		return err
	}); err != nil {
		t.Fatalf("Service %s: %v", name, err)
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
