// Package clustertest gives a control plane to a test. It ends with the test, which is skipped
// where none is to run.
package clustertest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// Need skips a test that needs a control plane where none is to run.
func Need(t testing.TB) {
	t.Helper()
	if !cluster.Enabled() {
		t.Skip("needs a control plane, which takes minutes to build: " +
			cluster.EnableVariable + "=1, or make -C test cluster")
	}
}

// Start starts a control plane and ends it with the test. It skips the test as Need does.
func Start(ctx context.Context, t testing.TB, config cluster.Config) *cluster.Cluster {
	t.Helper()
	Need(t)
	c, err := cluster.Start(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close the control plane: %v", err)
		}
	})
	return c
}

// Kinds creates the CustomResourceDefinitions of files, and returns when each version of them is
// served.
func Kinds(ctx context.Context, t testing.TB, c *cluster.Cluster, files ...string) {
	t.Helper()
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		definitions, err := cluster.Decode(text)
		if err == nil {
			err = c.ApplyObjects(ctx, definitions...)
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, d := range definitions {
			err := topo.Until(ctx, machine.Slower(30*time.Second), 10*time.Millisecond,
				func(context.Context) error { return served(c, d) })
			if err != nil {
				t.Fatalf("%s: %s is not served: %v", file, d.GetName(), err)
			}
		}
	}
}

// served returns an error if the API server does not list a version of a kind.
func served(c *cluster.Cluster, definition *unstructured.Unstructured) error {
	group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "plural")
	versions, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
	if err != nil || len(versions) == 0 {
		return fmt.Errorf("it has no spec.versions: %w", err)
	}
	for _, v := range versions {
		name, _, _ := unstructured.NestedString(v.(map[string]any), "name")
		list, err := c.Client().Discovery().ServerResourcesForGroupVersion(group + "/" + name)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == plural }) {
			return fmt.Errorf("%s/%s is served without %s", group, name, plural)
		}
	}
	return nil
}
