//go:build root

package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/test/bed/topo"
)

// TestForeignTool: another tool detaches the XDP program of an interface, or empties its map of
// sockets. Both are noticed and put right, and no established connection breaks.
func TestForeignTool(t *testing.T) {
	t.Parallel()
	const open = 100
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}, small: true,
		damaging: true}) // the gateway's kernel gets packets for VIPs, which are not its addresses
	flows := l.established(open, 2*time.Minute)
	program := l.xdpProgram("front0")
	for _, fault := range []struct {
		name  string
		meet  func()
		again bool // the program is another one afterwards
	}{
		{"sockets of front0", func() { l.emptySockets("front0") }, false},
		{"sockets of back0", func() { l.emptySockets("back0") }, false},
		{"program of front0", func() { l.detach("front0") }, true},
	} {
		fault.meet()
		l.eventually(3*time.Second, fault.name+": served again", l.served)
		l.answeredAgain(flows)
		now := l.xdpProgram("front0")
		if again := now != program; again != fault.again {
			t.Errorf("%s: attached again %v, want %v", fault.name, again, fault.again)
		}
		program = now
		l.wantServed(fault.name)
	}
	l.wantUnbroken(flows, open, "another tool was there")
}

// served reports whether new connections to both families are, at once.
func (l *lab) served() bool {
	l.t.Helper()
	r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{at(vip4, webPort), at(vip6, webPort)},
		Requests: 16, Concurrency: 8, Timeout: time.Second})
	if err != nil {
		l.t.Fatal(err)
	}
	return r.Failed() == 0
}

// xdpProgram is the ID of the program on an interface of the gateway; there must be one.
func (l *lab) xdpProgram(name string) (id ebpf.ProgramID) {
	l.t.Helper()
	l.onLink(name, func(at netlink.Link) error {
		x := at.Attrs().Xdp
		if x == nil || x.ProgId == 0 {
			return fmt.Errorf("%s has no XDP program", name)
		}
		id = ebpf.ProgramID(x.ProgId)
		return nil
	})
	return id
}

// emptySockets removes all entries of the XSKMAP that the interface's program has.
func (l *lab) emptySockets(name string) {
	l.t.Helper()
	if err := emptySockets(l.xdpProgram(name)); err != nil {
		l.t.Fatal(err)
	}
}

func emptySockets(id ebpf.ProgramID) error {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return err
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return err
	}
	ids, _ := info.MapIDs()
	removed := 0
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return err
		}
		defer m.Close()
		for queue := range m.MaxEntries() {
			if m.Type() == ebpf.XSKMap && m.Delete(queue) == nil {
				removed++
			}
		}
	}
	if removed == 0 {
		return errors.New("no socket was in the map")
	}
	return nil
}

// detach detaches the XDP program of an interface by its link, as `bpftool link detach` does.
func (l *lab) detach(name string) {
	l.t.Helper()
	pin := ""
	l.onLink(name, func(at netlink.Link) error {
		return filepath.WalkDir(l.gate.BPFFS(), func(path string, _ os.DirEntry, err error) error {
			if filepath.Base(path) == fmt.Sprint("xdp_", at.Attrs().Index) {
				pin = path
			}
			return err
		})
	})
	attached, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	defer attached.Close()
	if err := attached.Detach(); err != nil {
		l.t.Fatal(err)
	}
}
