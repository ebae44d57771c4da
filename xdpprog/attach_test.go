//go:build root

package xdpprog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

func TestAttachMode(t *testing.T) {
	isolate(t)
	nic, _ := veth(t, "nic", "peer")
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br"}})) // has no native XDP
	bridge := up(t, "br")
	s := load(t, Config{})
	defer s.Close(true)
	for _, c := range []struct {
		name    string
		ifindex int
		ask     AttachMode
		want    AttachMode
		reason  string
	}{
		{"auto, supported by the driver", nic, Auto, Native, "the driver supports it"},
		{"native", nic, Native, Native, "configured"},
		{"generic, native supported by the driver", nic, Generic, Generic, "configured"},
		{"auto, not supported by the driver", bridge, Auto, Generic, "the driver refuses native mode"},
	} {
		p := attach(t, s, c.ifindex, c.name, c.ask)
		if p.Mode() != c.want || !strings.HasPrefix(p.Reason(), c.reason) {
			t.Errorf("%s: %v because %q, want %v because %q", c.name, p.Mode(), p.Reason(), c.want, c.reason)
		}
		h, err := readHook(c.ifindex)
		must(t, err)
		if h.generic != (c.want == Generic) || h.program != p.id {
			t.Errorf("%s: the hook has program %d, generic %v", c.name, h.program, h.generic)
		}
		must(t, p.Check())
		if !p.Linked() {
			t.Errorf("%s: not linked", c.name)
		}
		must(t, p.Close())
		if err := p.Check(); !errors.Is(err, ErrDetached) || p.Linked() {
			t.Errorf("%s: after Close, Check returns %v, linked %v", c.name, err, p.Linked())
		}
	}
	if _, err := s.Attach(bridge, "br", Native); err == nil || !strings.Contains(err.Error(),
		"the driver refuses native mode, choose auto") {
		t.Errorf("native mode on a bridge: %v", err)
	}
	if _, err := s.Attach(1<<20, "none", Auto); !errors.Is(err, ErrDeviceGone) {
		t.Errorf("attach to no interface: %v", err)
	}
	attach(t, s, nic, "nic", Auto)
	if _, err := s.Attach(nic, "nic", Auto); !errors.Is(err, ErrAttached) {
		t.Errorf("attach twice: %v", err)
	}
}

// TestTakeover: a successor opens maps and links, and replaces the programs in place: the links
// stay, so the hooks are never empty.
func TestTakeover(t *testing.T) {
	isolate(t)
	nic, _ := veth(t, "nic", "peer")
	c := Config{PinDir: pinDir(t)}

	old := load(t, c)
	must(t, old.SetSettings(Settings{SNATFirst: snatFirst, SNATCount: snatCount, HostLinkIndex: 7}))
	if n, err := old.Reconcile(fixture()); err != nil || n == 0 {
		t.Fatalf("first Reconcile: %d changes, %v", n, err)
	}
	before := attach(t, old, nic, "nic", Generic)
	must(t, old.AttachEgress(nic, "nic"))
	xdp, tcx := linkID(t, before.link), linkID(t, old.egress[nic].link)
	must(t, old.Close(false)) // as the kernel closes a killed process's descriptors

	if h, err := readHook(nic); err != nil || h.program != before.id {
		t.Fatalf("without a daemon the hook holds program %d, %v; want %d", h.program, err, before.id)
	}
	s := load(t, c)
	defer s.Close(true)
	var settings steerConfig
	must(t, s.maps[steerMapSettings].Lookup(uint32(0), &settings))
	if settings.SnatFirst != snatFirst || settings.HostLink != 7 {
		t.Errorf("settings were not taken over: %+v", settings)
	}
	sameRules(t, s.Rules(), fixture())
	if n, err := s.Reconcile(fixture()); err != nil || n != 0 {
		t.Errorf("Reconcile with what the maps hold: %d changes, %v", n, err)
	}
	after := attach(t, s, nic, "nic", Auto)
	must(t, s.AttachEgress(nic, "nic"))
	if after.Mode() != Generic {
		t.Errorf("mode %v, want the predecessor's", after.Mode())
	}
	if linkID(t, after.link) != xdp || linkID(t, s.egress[nic].link) != tcx {
		t.Error("the links are not the predecessor's")
	}
	if h, err := readHook(nic); err != nil || h.program != after.id || after.id == before.id {
		t.Errorf("the hook holds program %d, %v; want %d", h.program, err, after.id)
	}
	must(t, after.Check())
}

// TestTakeoverOfUnusablePins: pins of a predecessor that a successor cannot use.
func TestTakeoverOfUnusablePins(t *testing.T) {
	isolate(t)
	nic, _ := veth(t, "nic", "peer")
	gone, _ := veth(t, "gone", "away")
	c := Config{PinDir: pinDir(t)}
	s := load(t, c)
	_, err := s.Reconcile(fixture())
	must(t, err)
	attach(t, s, nic, "nic", Generic)
	attach(t, s, gone, "gone", Native)
	must(t, s.AttachEgress(gone, "gone"))
	must(t, s.Close(false))
	foreignLayout := filepath.Join(c.PinDir, mapPrefix+"0", "frontends")
	must(t, os.MkdirAll(foreignLayout, 0o700))
	remove(t, "gone")

	c.MaxFrontends = 100
	s = load(t, c)
	defer func() { must(t, s.Close(true)) }()
	if _, err := os.Stat(filepath.Dir(foreignLayout)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("maps of another layout are still there: %v", err)
	}
	if n, err := s.Reconcile(fixture()); err != nil || n != len(fixture().Frontends) {
		t.Errorf("%d changes, %v; want the %d frontends of the map that was replaced", n, err, len(fixture().Frontends))
	}
	if p := attach(t, s, nic, "nic", Native); p.Mode() != Native {
		t.Errorf("mode %v, want native in place of the predecessor's generic", p.Mode())
	}
	must(t, s.DetachOthers())
	if got, want := pins(t, c.PinDir), fmt.Sprintf("[xdp_%d]", nic); got != want {
		t.Errorf("pinned links %s, want %s", got, want)
	}
}

// TestPreferNative: a native attachment replaces a predecessor's generic one if the driver supports
// it, and a native one is kept.
func TestPreferNative(t *testing.T) {
	isolate(t)
	nic, _ := veth(t, "nic", "peer")
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br"}})) // has no native XDP
	bridge := up(t, "br")
	c := Config{PinDir: pinDir(t)}
	s := load(t, c)
	attach(t, s, nic, "nic", Generic)
	attach(t, s, bridge, "br", Generic)
	must(t, s.Close(false))
	for _, step := range []struct{ nic, bridge string }{
		{"the driver supports it", "the driver refuses native mode"}, {"taken over", "the driver refuses native mode"},
	} {
		s = load(t, c)
		p := attach(t, s, nic, "nic", PreferNative)
		if p.Mode() != Native || !strings.HasPrefix(p.Reason(), step.nic) {
			t.Errorf("%v because %q, want native because %q", p.Mode(), p.Reason(), step.nic)
		}
		must(t, p.Check())
		p = attach(t, s, bridge, "br", PreferNative)
		if p.Mode() != Generic || !strings.HasPrefix(p.Reason(), step.bridge) {
			t.Errorf("without native XDP: %v because %q, want generic because %q", p.Mode(), p.Reason(), step.bridge)
		}
		must(t, s.Close(false))
	}
	must(t, load(t, c).Close(true))
}

// TestRecreated: an interface that is recreated with the same index gets a new link.
func TestRecreated(t *testing.T) {
	isolate(t)
	nic, _ := veth(t, "nic", "peer")
	s := load(t, Config{PinDir: pinDir(t)})
	defer func() { must(t, s.Close(true)) }()
	p := attach(t, s, nic, "nic", Auto)
	must(t, s.AttachEgress(nic, "nic"))
	if !p.Linked() {
		t.Error("not linked")
	}
	remove(t, "nic")
	if err := p.Check(); !errors.Is(err, ErrDeviceGone) || p.Linked() {
		t.Errorf("Check says %v, linked %v", err, p.Linked())
	}
	must(t, p.Close())
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index = "nic", nic
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}))
	p = attach(t, s, nic, "nic", Auto)
	must(t, s.AttachEgress(nic, "nic"))
	must(t, p.Check())
}

// TestRecreatedWhileDown: the same while no daemon runs; the pins are of links without a device.
func TestRecreatedWhileDown(t *testing.T) {
	isolate(t)
	nic, _ := veth(t, "nic", "peer")
	c := Config{PinDir: pinDir(t)}
	s := load(t, c)
	attach(t, s, nic, "nic", Auto)
	must(t, s.AttachEgress(nic, "nic"))
	must(t, s.Close(false))
	remove(t, "nic")
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index = "nic", nic
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}))
	s = load(t, c)
	defer func() { must(t, s.Close(true)) }()
	p := attach(t, s, nic, "nic", Auto)
	must(t, s.AttachEgress(nic, "nic"))
	must(t, p.Check())
}

func TestForeignProgram(t *testing.T) {
	isolate(t)
	nic, _ := veth(t, "nic", "peer")
	c := Config{PinDir: pinDir(t)}
	s := load(t, c)
	defer func() { must(t, s.Close(true)) }()
	foreign := passProgram(t)
	info, err := foreign.Info()
	must(t, err)
	id, _ := info.ID()
	refused := func(how string) {
		t.Helper()
		_, err := s.Attach(nic, "nic", Auto)
		if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), fmt.Sprintf("program id %d (%q)", id,
			"somebody")) {
			t.Errorf("%s: %v", how, err)
		}
		if h, err := readHook(nic); err != nil || h.program != id {
			t.Errorf("%s: the hook holds program %d, %v; want the foreign %d", how, h.program, err, id)
		}
		if got := pins(t, c.PinDir); got != "[]" {
			t.Errorf("%s: pinned links %s", how, got)
		}
	}
	l, err := netlink.LinkByIndex(nic)
	must(t, err)
	must(t, netlink.LinkSetXdpFd(l, foreign.FD()))
	refused("by netlink")
	must(t, netlink.LinkSetXdpFd(l, -1))

	theirs, err := link.AttachXDP(link.XDPOptions{Program: foreign, Interface: nic, Flags: link.XDPGenericMode})
	must(t, err)
	refused("by a link, generic")
	must(t, theirs.Close())

	// The same after this gateway's program was detached.
	p := attach(t, s, nic, "nic", Auto)
	must(t, p.link.Detach())
	if err := p.Check(); !errors.Is(err, ErrDetached) || p.Linked() {
		t.Errorf("after a detach, Check returns %v, linked %v", err, p.Linked())
	}
	must(t, netlink.LinkSetXdpFd(l, foreign.FD()))
	if err := p.Check(); !errors.Is(err, ErrForeign) {
		t.Errorf("with a foreign program, Check returns %v", err)
	}
	must(t, netlink.LinkSetXdpFd(l, -1))
	must(t, p.Close())
	p = attach(t, s, nic, "nic", Auto)
	must(t, s.AttachEgress(nic, "nic"))
	must(t, p.Check())
	must(t, s.egress[nic].link.Detach())
	if err := p.Check(); !errors.Is(err, ErrDetached) || p.Linked() {
		t.Errorf("after a detach of egress, Check returns %v, linked %v", err, p.Linked())
	}
}

// TestOtherNamespace: a pin directory is for one gateway. Two namespaces have different devices
// with the same interface indexes.
func TestOtherNamespace(t *testing.T) {
	isolate(t)
	nic, _ := veth(t, "nic", "peer")
	c := Config{PinDir: pinDir(t)}
	s := load(t, c)
	id := attach(t, s, nic, "nic", Native).id
	must(t, s.Close(false))
	home, err := netns.Get()
	must(t, err)
	defer home.Close()
	must(t, unix.Unshare(unix.CLONE_NEWNET))
	nic2, _ := veth(t, "nic", "peer")
	if nic2 != nic {
		t.Fatalf("interface indexes %d and %d differ: the test is void", nic2, nic)
	}
	second := load(t, c)
	for _, mode := range []AttachMode{Auto, Generic} {
		if _, err := second.Attach(nic2, "nic", mode); err == nil || !strings.Contains(err.Error(),
			"another network namespace") {
			t.Errorf("%v: %v", mode, err)
		}
	}
	must(t, second.Close(false))
	must(t, netns.Set(home))
	if h, err := readHook(nic); err != nil || h.program != id {
		t.Errorf("the hook holds program %d, %v; want %d", h.program, err, id)
	}
	s = load(t, c)
	must(t, attach(t, s, nic, "nic", Auto).Check())
	must(t, s.Close(true))
}

// TestEgressIsLoadedOnce: the egress program takes most of the verifier's time at a start, so
// interfaces share it. The removal of one interface does not remove it from the others.
func TestEgressIsLoadedOnce(t *testing.T) {
	isolate(t)
	nic, other := veth(t, "nic", "other")
	s := load(t, Config{})
	program := func(ifindex int) ebpf.ProgramID {
		t.Helper()
		info, err := s.egress[ifindex].prog.Info()
		must(t, err)
		id, _ := info.ID()
		return id
	}
	first := attach(t, s, nic, "nic", Auto)
	attach(t, s, other, "other", Auto)
	must(t, s.AttachEgress(nic, "nic"))
	must(t, s.AttachEgress(other, "other"))
	id := program(nic)
	if got := program(other); got != id {
		t.Errorf("programs %d and %d, want the same", id, got)
	}
	must(t, first.Close())
	if got := program(other); got != id {
		t.Errorf("program %d after one interface has gone, was %d", got, id)
	}
	must(t, s.Close(true))
}

// TestCleanRemoval: Close(true) leaves no pin, no link and no program.
func TestCleanRemoval(t *testing.T) {
	isolate(t)
	nic, _ := veth(t, "nic", "peer")
	_, user := veth(t, "hl", "user")
	c := Config{PinDir: pinDir(t)}
	s := load(t, c)
	port := attach(t, s, nic, "nic", Auto)
	must(t, s.AttachEgress(nic, "nic"))
	host, err := s.AttachHostLink(user, "user")
	must(t, err)
	egressInfo, err := s.egress[nic].prog.Info()
	must(t, err)
	egress, _ := egressInfo.ID()
	links := []link.ID{linkID(t, port.link), linkID(t, host.link), linkID(t, s.egress[nic].link)}
	if got, want := pins(t, c.PinDir), fmt.Sprintf("[tcx_%d xdp_%d xdp_%d]", nic, nic, user); got != want {
		t.Errorf("pinned links %s, want %s", got, want)
	}
	must(t, s.Close(true))

	if _, err := os.Stat(c.PinDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the pin directory is still there: %v", err)
	}
	for _, ifindex := range []int{nic, user} {
		if h, err := readHook(ifindex); err != nil || h.program != 0 {
			t.Errorf("interface %d holds program %d, %v", ifindex, h.program, err)
		}
	}
	for _, id := range links {
		if l, err := link.NewFromID(id); err == nil {
			l.Close()
			t.Errorf("link %d is still there", id)
		}
	}
	deadline := time.Now().Add(patience) // the kernel frees programs after a grace period
	for _, id := range []ebpf.ProgramID{port.id, host.id, egress} {
		for {
			p, err := ebpf.NewProgramFromID(id)
			if errors.Is(err, fs.ErrNotExist) {
				break
			}
			must(t, err)
			p.Close()
			if time.Now().After(deadline) {
				t.Fatalf("program %d is still there", id)
			}
		}
	}
}

// TestDescriptorElsewhereDoesNotKeepLink: another process's descriptor of the link does not keep it
// attached.
func TestDescriptorElsewhereDoesNotKeepLink(t *testing.T) {
	isolate(t)
	nic, _ := veth(t, "nic", "peer")
	s := load(t, Config{PinDir: pinDir(t)})
	p := attach(t, s, nic, "nic", Auto)
	held, err := link.NewFromID(linkID(t, p.link))
	must(t, err)
	defer held.Close()
	must(t, s.Close(true))
	if h, err := readHook(nic); err != nil || h.program != 0 {
		t.Errorf("the hook holds program %d, %v", h.program, err)
	}
}

// TestNoPins: without a pin directory everything ends with the Steering.
func TestNoPins(t *testing.T) {
	isolate(t)
	nic, _ := veth(t, "nic", "peer")
	s := load(t, Config{})
	attach(t, s, nic, "nic", Auto)
	must(t, s.AttachEgress(nic, "nic"))
	must(t, s.DetachOthers())
	must(t, s.Close(false))
	if h, err := readHook(nic); err != nil || h.program != 0 {
		t.Errorf("the hook holds program %d, %v", h.program, err)
	}
}

func linkID(t *testing.T, l link.Link) link.ID {
	t.Helper()
	info, err := l.Info()
	must(t, err)
	return info.ID
}

// pins lists the pinned links.
func pins(t *testing.T, pinDir string) string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(pinDir, linkDir))
	must(t, err)
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return fmt.Sprint(names)
}

// passProgram returns another owner's program.
func passProgram(t *testing.T) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "somebody", Type: ebpf.XDP, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}
