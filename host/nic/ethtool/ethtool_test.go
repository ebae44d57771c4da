//go:build root

package ethtool

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	here  = "et0"
	there = "et1"
)

// veth gives the test a namespace of its own with a pair of three queues.
func veth(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	fd, err := netns.New()
	must(t, err)
	t.Cleanup(func() { must(t, fd.Close()) })
	pair := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: there}
	pair.Name, pair.NumTxQueues, pair.NumRxQueues = here, 3, 3
	must(t, netlink.LinkAdd(pair))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestVeth(t *testing.T) {
	veth(t)
	if name, err := Driver(here); name != "veth" || err != nil {
		t.Errorf("driver %q, %v", name, err)
	}
	c, err := ReadChannels(here)
	must(t, err)
	if (c != Channels{MaxRx: 3, MaxTx: 3, Rx: 3, Tx: 3}) {
		t.Errorf("queues %+v", c)
	}
	c.Rx, c.Tx = 2, 1
	must(t, SetChannels(here, c))
	got, err := ReadChannels(here)
	must(t, err)
	if rx, tx := got.Queues(); got != c || rx != 2 || tx != 1 || got.Pairs() != 1 {
		t.Errorf("queues %+v, want %+v", got, c)
	}
	c.Rx = 4
	if err := SetChannels(here, c); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(),
		here+": set queues") {
		t.Errorf("four of three queues: %v", err)
	}
	if c := (Channels{Combined: 8, Rx: 1}); c.Pairs() != 8 {
		t.Errorf("%+v: %d pairs", c, c.Pairs())
	}
	if rx, tx := (Channels{}).Queues(); rx != 1 || tx != 1 {
		t.Errorf("no queues count as %d, %d", rx, tx)
	}
}

func TestFeatures(t *testing.T) {
	veth(t)
	const gro, scatter, fixed = "rx-gro", "tx-scatter-gather", "rx-hashing"
	before, err := Features(here)
	must(t, err)
	if on, known := before[fixed]; on || !known || before[gro] || !before[scatter] || before[""] {
		t.Errorf("a new veth has %v", before)
	}
	must(t, SetFeatures(here, map[string]bool{gro: true, scatter: false}))
	after, err := Features(here)
	must(t, err)
	if !after[gro] || after[scatter] {
		t.Errorf("%s %v, %s %v", gro, after[gro], scatter, after[scatter])
	}
	for name := range before {
		// Segmentation needs scatter-gather and goes with it.
		if name != gro && name != scatter && before[name] != after[name] && !strings.Contains(name, "segmentation") {
			t.Errorf("%s was %v, is %v", name, before[name], after[name])
		}
	}
	if err := SetFeatures(here, map[string]bool{fixed: true}); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("a fixed feature: %v", err)
	}
	if err := SetFeatures(here, map[string]bool{gro: false, "no-such-thing": true}); err == nil ||
		!strings.Contains(err.Error(), "knows 1 of the 2") {
		t.Errorf("an unknown feature: %v", err)
	}
	if f, err := Features(here); err != nil || !f[gro] {
		t.Errorf("the refused change was half made: %v, %v", f[gro], err)
	}
}

func TestStatistics(t *testing.T) {
	veth(t)
	s, err := Statistics(here)
	must(t, err)
	peer, err := netlink.LinkByName(there)
	must(t, err)
	if s["peer_ifindex"] != uint64(peer.Attrs().Index) {
		t.Errorf("peer_ifindex %d, want %d", s["peer_ifindex"], peer.Attrs().Index)
	}
	if _, ok := s["rx_queue_2_xdp_packets"]; !ok {
		t.Errorf("no third queue among %v", s)
	}
}

// TestUnsupportedRequests: a veth has no hash and no rings of its own, and returns the one error
// that callers distinguish from a failure.
func TestUnsupportedRequests(t *testing.T) {
	veth(t)
	for _, f := range []Flow{TCP4, UDP4, SCTP4, TCP6, UDP6, SCTP6} {
		if h, err := ReadFlowHash(here, f); !errors.Is(err, unix.EOPNOTSUPP) || h != 0 || !strings.Contains(err.Error(),
			f.String()) {
			t.Errorf("%v: %b, %v", f, h, err)
		}
	}
	if r, err := ReadRings(here); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("rings %+v, %v", r, err)
	}
}

// TestLongNames: a name that is too long does not select the device with the truncated name.
func TestLongNames(t *testing.T) {
	veth(t)
	link, err := netlink.LinkByName(here)
	must(t, err)
	const longest = "fifteen-letters"
	must(t, netlink.LinkSetName(link, longest))
	if _, err := ReadChannels(longest); err != nil {
		t.Error(err)
	}
	if _, err := ReadChannels(longest + "x"); !errors.Is(err, unix.ENODEV) {
		t.Errorf("%sx: %v", longest, err)
	}
}
