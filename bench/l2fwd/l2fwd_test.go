//go:build root

package l2fwd

import (
	"testing"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/fastpath/xsk/xsktest"
)

// TestRefusals: impossible configurations are rejected. Package compare tests that packets are
// forwarded both ways, and that nothing is left.
func TestRefusals(t *testing.T) {
	xsktest.EnterNamespace(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.NumTxQueues, attrs.NumRxQueues = "in0", 2, 2
	veth := netlink.NewVeth(attrs)
	veth.PeerName = "out0"
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	in, out := Side{Interface: "in0"}, Side{Interface: "out0"}
	for name, c := range map[string]Config{
		"no names":        {},
		"one interface":   {In: in, Out: in},
		"no such device":  {In: in, Out: Side{Interface: "nowhere"}},
		"too many queues": {In: in, Out: out, Queues: 3},
		"negative":        {In: in, Out: out, Queues: -1},
		"no such CPU":     {In: in, Out: out, CPUs: []int{1023}},
	} {
		if err := Run(t.Context(), c); err == nil {
			t.Errorf("%s: no error", name)
		} else {
			t.Log(err)
		}
	}
}
