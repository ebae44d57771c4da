//go:build root

package doctor

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/host/nic/ethtool"
	"sluice.dev/sluice/host/nic/netdev"
)

// TestReadVeth reads a veth pair in a namespace of its own: kind, queues, what its
// driver can, and the other end's offloads as long as that is in sight.
func TestReadVeth(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test, and its namespace with it
	outside, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer outside.Close()
	inside, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	suffix := fmt.Sprintf("%04x", rand.N(1<<16))
	pair := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "drb" + suffix}
	pair.Name, pair.MTU = "dra"+suffix, 1400
	pair.NumTxQueues, pair.NumRxQueues = 2, 2
	if err := netlink.LinkAdd(pair); err != nil {
		t.Fatal(err)
	}
	if pid := os.Getppid(); otherNamespace(pid) != pid || otherNamespace(unix.Gettid()) != 0 {
		t.Errorf("in another namespace than pid %d: %d; than itself: %d", pid, otherNamespace(pid),
			otherNamespace(unix.Gettid()))
	}
	d := readInterface(pair.Name)
	if d.Err != nil || d.Up || d.Kind != "veth" || d.Driver != "veth" || d.MTU != 1400 || d.Queues != 2 ||
		d.MaxQueues != 2 || d.Program != "" {
		t.Errorf("read %+v", d)
	}
	if native := uint64(netdev.Basic | netdev.Redirect); !d.XDPKnown || d.XDPFeatures&native != native ||
		d.XDPFeatures&netdev.ZeroCopy != 0 {
		t.Errorf("XDP features %b (%v)", d.XDPFeatures, d.XDPKnown)
	}
	if !d.PeerFeatures["tx-checksum-ip-generic"] {
		t.Errorf("the other end's offloads read as %v", d.PeerFeatures)
	}
	if err := ethtool.SetFeatures(pair.PeerName, map[string]bool{"tx-checksum-ip-generic": false}); err != nil {
		t.Fatal(err)
	}
	if d := readInterface(pair.Name); d.PeerFeatures == nil || d.PeerFeatures["tx-checksum-ip-generic"] {
		t.Errorf("with tx off: %v", d.PeerFeatures)
	}
	over := &netlink.Macvlan{LinkAttrs: netlink.NewLinkAttrs(), Mode: netlink.MACVLAN_MODE_BRIDGE}
	over.Name = "drd" + suffix
	if here, err := netlink.LinkByName(pair.Name); err != nil {
		t.Fatal(err)
	} else {
		over.ParentIndex = here.Attrs().Index
	}
	if err := netlink.LinkAdd(over); err != nil {
		t.Fatal(err)
	}
	for _, gro := range []bool{true, false} {
		if err := ethtool.SetFeatures(pair.Name, map[string]bool{"rx-gro": gro}); err != nil {
			t.Fatal(err)
		}
		if d := readInterface(over.Name); !slices.Equal(d.Below, []Lower{{pair.Name, gro}}) {
			t.Errorf("under a macvlan on %s, GRO %v: %v", pair.Name, gro, d.Below)
		}
	}
	if d := readInterface(pair.Name); len(d.Below) != 0 {
		t.Errorf("under a veth: %v", d.Below)
	}
	peer, err := netlink.LinkByName(pair.PeerName)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetNsFd(peer, int(outside)); err != nil {
		t.Fatal(err)
	}
	// A device here that has the number which the other end has there is not it.
	near, err := netlink.LinkByName(pair.Name)
	if err != nil {
		t.Fatal(err)
	}
	stranger := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	stranger.Name, stranger.Index = "drc"+suffix, near.Attrs().ParentIndex
	if err := netlink.LinkAdd(stranger); err != nil {
		t.Fatal(err)
	}
	if d := readInterface(pair.Name); d.PeerFeatures != nil {
		t.Errorf("the other end is out of sight, but reads as %v", d.PeerFeatures)
	}
	if err := netlink.LinkDel(pair); err != nil { // both ends
		t.Error(err)
	}
}
