//go:build root

package upstream

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/cluster/clustertest"
)

// A Service has an address and a finalizer while it is of type LoadBalancer, keeps the address
// while it changes, and others get it after that. The pool has two.
func TestBalancer(t *testing.T) {
	ctx := t.Context()
	c := clustertest.Start(ctx, t, cluster.Config{})
	w, err := StartWatch(ctx, c.Client(), netip.MustParsePrefix("198.51.100.0/31"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	services := c.Client().CoreV1().Services("default")
	create := func(name string) {
		t.Helper()
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}}}
		if _, err := services.Create(ctx, s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	change := func(name string, f func(*corev1.Service)) {
		t.Helper()
		until(t, func() error {
			s, err := services.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			f(s)
			_, err = services.Update(ctx, s, metav1.UpdateOptions{})
			return err
		})
	}
	has := func(name, address string) {
		t.Helper()
		until(t, func() error { return hasAddress(ctx, c, name, address) })
	}
	remove := func(name string) {
		t.Helper()
		if err := services.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		until(t, func() error {
			if _, err := services.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s is still there: %v", name, err)
			}
			return nil
		})
	}
	// One address is the pool's own, which nobody gets.
	create("first")
	has("first", "198.51.100.1")
	create("second")
	change("first", func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 })
	has("first", "198.51.100.1")
	change("first", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
	has("first", "")
	has("second", "198.51.100.1")
	remove("second")
	change("first", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer })
	has("first", "198.51.100.1")
	remove("first")
}

// hasAddress reports whether a Service has an address and the finalizer, or, if that is empty,
// neither.
func hasAddress(ctx context.Context, c *cluster.Cluster, name, address string) error {
	s, err := c.Client().CoreV1().Services("default").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	var got string
	if len(s.Status.LoadBalancer.Ingress) == 1 {
		got = s.Status.LoadBalancer.Ingress[0].IP
	}
	if got != address || slices.Contains(s.Finalizers, finalizer) != (address != "") {
		return fmt.Errorf("%s has address %q and finalizers %q, want %q", name, got, s.Finalizers, address)
	}
	return nil
}

// until asks until there is no error.
func until(t *testing.T, condition func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = condition(); err == nil {
			return
		}
	}
	t.Fatal(err)
}
