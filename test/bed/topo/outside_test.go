//go:build root

package topo

import (
	"os"
	"testing"
	"time"
)

// TestOutside: what is started outside is in the caller's namespace, and ends with Close.
func TestOutside(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: network namespaces")
	}
	// Not the process's: that is its first thread's, which an earlier test may have taken to a
	// namespace for good.
	theirs, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	n, h, err := Outside()
	if err != nil {
		t.Fatal(err)
	}
	p, err := h.Start(Command{Path: "sleep", Args: []string{"60"}})
	if err != nil {
		t.Fatal(err)
	}
	if ours, err := currentNamespaceName(h); err != nil || theirs != ours {
		t.Errorf("namespace %s, want %s: %v", ours, theirs, err)
	}
	if err := n.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	select {
	case <-p.Done():
	case <-time.After(10 * time.Second):
		t.Error("the process outlives Close")
	}
	if left, err := n.Leftovers(); err != nil || len(left) != 0 {
		t.Errorf("left over: %v %v", left, err)
	}
}

func currentNamespaceName(h *Host) (name string, err error) {
	err = h.Run(func() (err error) {
		name, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	})
	return name, err
}
