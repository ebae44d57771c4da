//go:build root

package hostlink

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/test/bed/machine"
)

func TestCheck(t *testing.T) {
	link := func(t *testing.T, name string) netlink.Link { return must[netlink.Link](t)(netlink.LinkByName(name)) }
	other, err := net.ParseMAC("02:00:00:00:00:09")
	if err != nil {
		t.Fatal(err)
	}
	remake := func(t *testing.T, h *HostLink) error {
		if err := netlink.LinkDel(link(t, h.KernelName)); err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = h.Name, h.MTU
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: h.KernelName})
	}
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, h *HostLink) error
		want string // in the error
		gone bool
	}{
		{"nothing", func(*testing.T, *HostLink) error { return nil }, "", false},
		{"MTU raised", func(t *testing.T, h *HostLink) error { return netlink.LinkSetMTU(link(t, h.Name), 9000) }, "",
			false},
		{"MTU lowered", func(t *testing.T, h *HostLink) error {
			return netlink.LinkSetMTU(link(t, h.KernelName),
				1400)
		}, "sluice1 has MTU 1400", false},
		{"down", func(t *testing.T, h *HostLink) error { return netlink.LinkSetDown(link(t, h.Name)) },
			"sluice0 is down", false},
		{"deleted", func(t *testing.T, h *HostLink) error { return netlink.LinkDel(link(t, h.Name)) },
			"sluice0 does not exist", true},
		{"renamed", func(t *testing.T, h *HostLink) error { return netlink.LinkSetName(link(t, h.KernelName), "x") },
			"sluice1 does not exist", true},
		{"created again", remake, "sluice0 has index", true},
		{"MAC changed", func(t *testing.T, h *HostLink) error {
			return netlink.LinkSetHardwareAddr(link(t, h.KernelName), other)
		}, "sluice1 has address 02:00:00:00:00:09", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inNamespace(t, func(t *testing.T) {
				h := must[*HostLink](t)(Ensure(testConfig()))
				if err := h.Check(); err != nil {
					t.Fatal(err)
				}
				if err := tc.do(t, h); err != nil {
					t.Fatal(err)
				}
				err := h.Check()
				if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) ||
					errors.Is(err, ErrGone) != tc.gone {
					t.Errorf("Check: %v, want %q, gone %v", err, tc.want, tc.gone)
				}
				again, err := Ensure(testConfig()) // the repair
				if tc.name == "renamed" {
					if !errors.Is(err, ErrForeign) { // one end exists, and may be another program's
						t.Errorf("Ensure: %v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if err := again.Check(); err != nil {
					t.Errorf("after Ensure: %v", err)
				}
				if err := again.Remove(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestCheckCannotRead: the pair counts as unread, neither as gone nor as changed, while the process
// is out of descriptors or memory.
func TestCheckCannotRead(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		h := must[*HostLink](t)(Ensure(testConfig()))
		for _, errno := range machine.Shortages {
			machine.Short(t, errno, func() {
				if err := h.Check(); !errors.Is(err, ErrUnread) || !errors.Is(err, errno) || errors.Is(err, ErrGone) {
					t.Errorf("%v, want %v", err, errno)
				}
			})
		}
		if err := errors.Join(h.Check(), h.Remove()); err != nil {
			t.Error(err)
		}
	})
}
