//go:build root

package cluster

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/topo"
)

// startCluster starts a control plane for one test and sees that it leaves nothing.
func startCluster(t *testing.T, config Config) *Cluster {
	t.Helper()
	needRoot(t)
	if !Enabled() {
		t.Skip("needs a control plane, which takes minutes to build: " + EnableVariable + "=1, or make -C test cluster")
	}
	ctx := testContext(t)
	var err error
	if config.Binaries, err = Build(ctx, os.Stderr); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	c, err := Start(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("control plane ready after %.1f s", time.Since(begin).Seconds())
	t.Cleanup(func() { closeCluster(t, c) })
	return c
}

func closeCluster(t *testing.T, c *Cluster) {
	pids := []int{c.etcd.PID()}
	if c.apiServer != nil {
		pids = append(pids, c.apiServer.PID())
	}
	dir, port := c.dir, c.port.number
	if err := c.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d is left: %v", pid, err)
		}
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", dir, err)
	}
	if c.outside == nil {
		return
	}
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		t.Errorf("port %d is not free: %v", port, err)
		return
	}
	l.Close()
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: network namespaces")
	}
}

// newNet makes a network whose gateway forwards with its kernel.
func newNet(t *testing.T, c topo.Config) *topo.Net {
	t.Helper()
	needRoot(t)
	n, err := topo.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close the network: %v", err)
		}
		if left, err := n.Leftovers(); err != nil || len(left) != 0 {
			t.Errorf("left over: %v %v", left, err)
		}
	})
	if err := n.Gateway.Forward(true); err != nil {
		t.Fatal(err)
	}
	return n
}
