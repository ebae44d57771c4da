package upstream

import (
	"context"
	"io"
	"path/filepath"

	"sluice.dev/sluice/test/bed/cluster"
)

// Programs are the programs built from the release's own tests.
type Programs struct {
	Test    string // e2e.test, every case of test/e2e
	Kubectl string // by which cases run commands in pods
	Agnhost string // what nearly all pods of cases run
	Issue   string // test/images/regression-issue-74839
}

// Build returns the cached programs, or builds them, which takes many minutes: e2e.test is most of
// Kubernetes. Progress is written to a stream.
func Build(ctx context.Context, progress io.Writer) (*Programs, error) {
	dir, err := cluster.BuildSet(ctx, progress, cluster.Set{
		Module: "test/upstream/binaries", What: "e2e.test, kubectl and agnhost",
		Programs: []cluster.Program{
			{Name: "kubectl", Path: "k8s.io/kubernetes/cmd/kubectl"},
			{Name: "agnhost", Path: "k8s.io/kubernetes/test/images/agnhost"},
			{Name: "regression-issue-74839", Path: "k8s.io/kubernetes/test/images/regression-issue-74839"},
			{Name: "e2e.test", Path: "k8s.io/kubernetes/test/e2e", Test: true},
		},
	})
	if err != nil {
		return nil, err
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	return &Programs{Test: in("e2e.test"), Kubectl: in("kubectl"), Agnhost: in("agnhost"),
		Issue: in("regression-issue-74839")}, nil
}
