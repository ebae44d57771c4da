package assign

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/allocate/pools"
)

func pool(t *testing.T, name string, addresses ...string) *pools.Pool {
	t.Helper()
	p, err := pools.New(name, pools.Spec{Addresses: addresses})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// service returns an IPv4 Service with further fields.
func service(t *testing.T, name, more string) *corev1.Service {
	t.Helper()
	s := &corev1.Service{}
	text := "metadata: {name: " + name + ", namespace: default}\n" + more
	if !strings.HasPrefix(more, "spec:") {
		text += "\nspec: {type: LoadBalancer, ipFamilies: [IPv4], ports: [{port: 80}]}\n"
	}
	if err := yaml.Unmarshal([]byte(text), s); err != nil {
		t.Fatal(err)
	}
	return s
}

// wanting returns a Service with a further field in its specification.
func wanting(t *testing.T, name, field string) *corev1.Service {
	t.Helper()
	return service(t, name, "spec: {type: LoadBalancer, ipFamilies: [IPv4], ports: [{port: 80}], "+field+"}")
}

func resultOf(given map[string]Given, name string) string {
	g, there := given["default/"+name]
	if !there {
		return "nothing"
	}
	return strings.TrimSpace(fmt.Sprint(g.Addresses, " ", g.Problem))
}

func check(t *testing.T, what string, given map[string]Given, want ...string) {
	t.Helper()
	for i := 0; i < len(want); i += 2 {
		if got := resultOf(given, want[i]); !strings.HasPrefix(got, want[i+1]) {
			t.Errorf("%s: %s has %s, want %s", what, want[i], got, want[i+1])
		}
	}
}

func open(t *testing.T, dir string, list ...*pools.Pool) *Assigner {
	t.Helper()
	a := New(Config{Log: slog.New(slog.DiscardHandler), StateDir: dir})
	a.SetPools(list)
	a.Own()
	return a
}

// TestDecide: addresses in a status and requested ones come first, and are given to no other
// Service.
func TestDecide(t *testing.T) {
	t.Parallel()
	a := open(t, t.TempDir(), pool(t, "small", "192.0.2.0/30"))
	given := a.Decide([]*corev1.Service{
		service(t, "a", ""),
		wanting(t, "b", "loadBalancerIP: 192.0.2.0"),
		service(t, "c", "status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}"),
		service(t, "d", "status: {loadBalancer: {ingress: [{ip: 198.51.100.1}]}}"),
		wanting(t, "e", "loadBalancerClass: other"),
		service(t, "f", "spec: {type: ClusterIP, ipFamilies: [IPv4], ports: [{port: 80}]}"),
		service(t, "g", ""), service(t, "h", ""),
		service(t, "i", "spec: {type: LoadBalancer, ports: [{port: 80}]}"),
		wanting(t, "j", "loadBalancerIP: 192.0.2.1"),
	})
	check(t, "first", given, "a", "[192.0.2.2]", "b", "[192.0.2.0]", "c", "nothing", "d", "nothing", "e", "nothing",
		"f", "nothing", "g", "[192.0.2.3]", "h", "[] PoolEmpty: no free IPv4 address in pool small", "i",
		"[]", "j", "[] AddressTaken: 192.0.2.1: Service default/c has it")
}

// TestKept: a Service keeps its address when other Services come and go, over restarts, and while
// its pool is missing for a time.
func TestKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := []*corev1.Service{service(t, "web-m", ""), service(t, "web-n", "")}
	a := open(t, dir, pool(t, "p", "192.0.2.0/29"))
	check(t, "first", a.Decide(first), "web-m", "[192.0.2.0]", "web-n", "[192.0.2.1]")
	more := append([]*corev1.Service{service(t, "a", "")}, first...)
	check(t, "another", a.Decide(more), "a", "[192.0.2.2]", "web-m", "[192.0.2.0]", "web-n", "[192.0.2.1]")
	check(t, "restart", open(t, dir, pool(t, "p", "192.0.2.0/29")).Decide(more), "a", "[192.0.2.2]", "web-m",
		"[192.0.2.0]", "web-n", "[192.0.2.1]")
	// A process that does not own the file reads it and does not write it.
	waiting := New(Config{Log: slog.New(slog.DiscardHandler), StateDir: dir})
	waiting.SetPools([]*pools.Pool{pool(t, "p", "192.0.2.4/30")})
	check(t, "waiting", waiting.Decide(more), "web-m", "[192.0.2.5]")
	check(t, "after it", open(t, dir, pool(t, "p", "192.0.2.0/29")).Decide(more), "web-m", "[192.0.2.0]")
	if given := open(t, dir).Decide(more); len(given) != 0 {
		t.Errorf("without pools: %v", given)
	}
	check(t, "one is gone", open(t, dir, pool(t, "p", "192.0.2.0/29")).Decide(more[:2]), "a", "[192.0.2.2]", "web-m",
		"[192.0.2.0]")
	check(t, "its address is free", open(t, dir, pool(t, "p", "192.0.2.0/29")).Decide(append(more[:2:2],
		service(t, "b", ""))), "a", "[192.0.2.2]", "b", "[192.0.2.1]")
	if err := os.Remove(filepath.Join(dir, File)); err != nil {
		t.Fatal(err)
	}
	check(t, "without the file, by name", open(t, dir, pool(t, "p", "192.0.2.0/29")).Decide(more), "a", "[192.0.2.0]",
		"web-m", "[192.0.2.1]", "web-n", "[192.0.2.2]")
	open(t, dir, pool(t, "p", "192.0.2.0/29")).Decide(nil)
	if _, err := os.Stat(filepath.Join(dir, File)); err == nil {
		t.Error("nothing is kept, and the file is there")
	}
}

// TestFileIsNotOurs: a file that cannot be read is an error that names it, and its content is
// ignored.
func TestFileIsNotOurs(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"no JSON": "192.0.2.1", "another version": `{"version": 2, "services": {}}`, "empty": "",
		"an unknown field": `{"version": 1, "pools": []}`, "no address": `{"version": 1, "services": {"a/b": ["x"]}}`,
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, File)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
		a := open(t, dir, pool(t, "p", "192.0.2.0/29"))
		check(t, name, a.Decide([]*corev1.Service{service(t, "a", "")}), "a", "[192.0.2.0]")
		if kept, err := Load(dir); err != nil || len(kept) != 1 {
			t.Errorf("%s: the file was not replaced: %v, %v", name, kept, err)
		}
	}
}
