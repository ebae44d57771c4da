package updates

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"sluice.dev/sluice/control/k8s/k8stest"
	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/scratch"
	"sluice.dev/sluice/test/bed/topo"
)

// Servers are the possible API servers.
var Servers = []string{"memory", "real"}

// source is an API server.
type source interface {
	// fill writes objects, and start lets the gateway reach the server.
	fill(context.Context, []cluster.Object) error
	start(context.Context, *topo.Host) (kubeconfig string, err error)
	// update changes a slice. It may be called by any goroutine.
	update(context.Context, *discoveryv1.EndpointSlice) error
	// writers is the number of concurrent changes at which the server is fastest.
	writers() int
	close() error
}

func newSource(ctx context.Context, name string) (source, error) {
	switch name {
	case "memory":
		dir, err := scratch.Temporary("sluice-updates-")
		return &memory{server: k8stest.New(), dir: dir}, err
	case "real":
		k, err := cluster.Start(ctx, cluster.Config{})
		return &real{k}, err
	}
	return nil, fmt.Errorf("server %q is not one of %v", name, Servers)
}

// memory is a server in this process.
type memory struct {
	server *k8stest.Server
	dir    string
}

func (m *memory) fill(_ context.Context, list []cluster.Object) error {
	for _, o := range list {
		m.server.Set(o.(runtime.Object))
	}
	return nil
}

func (m *memory) start(_ context.Context, h *topo.Host) (string, error) {
	m.server.Listen = h.Listen
	if err := m.server.Start(); err != nil {
		return "", err
	}
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
  clusters: [{name: c, cluster: {server: "%s"}}], users: [{name: u, user: {}}]}`, m.server.URL())
	path := filepath.Join(m.dir, "kubeconfig")
	return path, os.WriteFile(path, []byte(text), 0o600)
}

func (m *memory) update(_ context.Context, s *discoveryv1.EndpointSlice) error {
	m.server.Set(s)
	return nil
}

func (m *memory) writers() int { return 1 }

func (m *memory) close() error {
	m.server.Stop()
	return os.RemoveAll(m.dir)
}

// real is a kube-apiserver with etcd.
type real struct{ cluster *cluster.Cluster }

func (r *real) fill(ctx context.Context, list []cluster.Object) error {
	return r.cluster.Put(ctx, list...)
}

func (r *real) start(ctx context.Context, h *topo.Host) (string, error) {
	return r.cluster.Gateway(ctx, h)
}

func (r *real) update(ctx context.Context, s *discoveryv1.EndpointSlice) error {
	_, err := r.cluster.Client().DiscoveryV1().EndpointSlices(s.Namespace).Update(ctx, s, metav1.UpdateOptions{})
	return err
}

func (r *real) writers() int { return 8 }

func (r *real) close() error {
	if r.cluster == nil {
		return nil
	}
	return r.cluster.Close()
}
