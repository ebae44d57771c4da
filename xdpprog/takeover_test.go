//go:build root

package xdpprog

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// TestPrepare: a second process prepares while the first runs, changes nothing, and owns everything
// once it has the lock: rules stay, and its program replaces the first one's when it has its own
// sockets.
func TestPrepare(t *testing.T) {
	isolate(t)
	nic, _ := veth(t, "nic", "peer")
	c := Config{PinDir: pinDir(t), Interfaces: 1}
	first := load(t, c)
	port := attach(t, first, nic, "nic", Auto)
	k := FrontendKey{Port: 80, Proto: unix.IPPROTO_TCP}
	k.Addr[15] = 1
	must(t, first.OpenFrontend(k))
	if _, err := Load(c); !errors.Is(err, ErrInUse) {
		t.Fatalf("loaded twice: %v", err)
	}
	before := pins(t, c.PinDir)

	next, err := Prepare(c)
	must(t, err)
	must(t, next.Close(false)) // a process that does not take over
	next, err = Prepare(c)
	must(t, err)
	if after := pins(t, c.PinDir); after != before {
		t.Errorf("pins %q, before %q", after, before)
	}
	must(t, port.Check())

	fd, err := unix.FcntlInt(uintptr(first.LockFD()), unix.F_DUPFD_CLOEXEC, 0)
	must(t, err)
	must(t, next.Own(os.NewFile(uintptr(fd), "lock")))
	if r := next.Rules(); len(r.Frontends) != 1 || r.Frontends[0] != k {
		t.Errorf("rules %+v", r)
	}
	filled := false
	replaced, err := next.AttachOver(nic, "nic", false, func(p *Port) error {
		must(t, port.Check()) // the other program stays attached until this one is complete
		filled = true
		return p.SetQueues(1)
	})
	must(t, err)
	if !filled {
		t.Error("the program was attached without its sockets")
	}
	must(t, replaced.Check())
	if err := port.Check(); err == nil || port.Linked() || !replaced.Linked() {
		t.Errorf("the program was not replaced: %v, linked %v, the other one %v", err, port.Linked(), replaced.Linked())
	}
	if id := linkID(t, replaced.link); id != linkID(t, port.link) {
		t.Errorf("another link: there was a moment without a program")
	}
	must(t, first.Close(false))
	if _, err := Load(c); !errors.Is(err, ErrInUse) {
		t.Errorf("the lock did not pass with its descriptor: %v", err)
	}
	must(t, next.Close(true))
}

// TestPrepareMisfits: Prepare rejects maps of another size, and does not change them.
func TestPrepareMisfits(t *testing.T) {
	isolate(t)
	c := Config{PinDir: pinDir(t)}
	if _, err := Prepare(c); !errors.Is(err, ErrMisfit) {
		t.Errorf("without a process at work: %v", err)
	}
	first := load(t, c)
	before := pins(t, c.PinDir)
	other := c
	other.MaxFrontends, other.HostLink = 1000, true
	if _, err := Prepare(other); !errors.Is(err, ErrMisfit) {
		t.Errorf("another size: %v", err)
	}
	for program, refused := range refusals {
		if err := prepareRefused(t, other, program); err == nil || errors.Is(err, ErrMisfit) == refused {
			t.Errorf("another size, and a program %s that the kernel refuses: %v", program, err)
		}
	}
	if after := pins(t, c.PinDir); after != before {
		t.Errorf("pins %q, before %q", after, before)
	}
	must(t, first.Close(true))
}

// refusals has, by program, whether a start fails without it.
var refusals = map[string]bool{steerProgSteer: true, steerProgHostLink: true, steerProgEgress: false}

// prepareRefused calls Prepare with a program that the verifier rejects, and returns the error.
func prepareRefused(t *testing.T, c Config, program string) error {
	t.Helper()
	s, err := newSteering(c)
	must(t, err)
	s.spec.Programs[program].Instructions = asm.Instructions{asm.LoadMem(asm.R0, asm.R1, 4096, asm.Word), asm.Return()}
	err = s.prepareBeside()
	must(t, s.Close(false))
	return err
}

// TestPrepareRefused: Prepare returns the errors of all programs that the kernel rejects, not only
// of the first, and changes nothing: after the handover such an error would close live sockets. A
// start succeeds without the egress program, and so does Prepare.
func TestPrepareRefused(t *testing.T) {
	isolate(t)
	nic, _ := veth(t, "nic", "peer")
	c := Config{PinDir: pinDir(t), Interfaces: 2, HostLink: true}
	first := load(t, c)
	port := attach(t, first, nic, "nic", Auto)
	next, err := Prepare(c)
	must(t, err)
	must(t, next.Close(false))
	for program := range refusals { // afterwards all descriptors that a process opens only once are open
		_ = prepareRefused(t, c, program)
	}
	before, open := pins(t, c.PinDir), descriptors(t)
	for program, refused := range refusals {
		err := prepareRefused(t, c, program)
		if refused && (err == nil || strings.Count(err.Error(), `"`+program+`"`) != 1) || !refused && err != nil {
			t.Errorf("the kernel refuses %s: %v", program, err)
		}
		if after := pins(t, c.PinDir); after != before {
			t.Errorf("pins %q, before %q", after, before)
		}
		must(t, port.Check())
		if now := descriptors(t); now != open {
			t.Errorf("%d descriptors, before %d", now, open)
		}
	}
	must(t, first.Close(true))
}

// TestReplaceable: a start replaces a program on an interface only if its link is pinned in the
// start's pin directory.
func TestReplaceable(t *testing.T) {
	isolate(t)
	nic, peer := veth(t, "nic", "peer")
	c := Config{PinDir: pinDir(t)}
	must(t, Replaceable(c.PinDir, nic, "nic"))
	s := load(t, c)
	attach(t, s, nic, "nic", Auto)
	must(t, Replaceable(c.PinDir, nic, "nic"))
	elsewhere := pinDir(t)
	if err := Replaceable(elsewhere, nic, "nic"); !errors.Is(err, ErrForeign) {
		t.Errorf("pinned elsewhere: %v", err)
	}
	another := load(t, Config{PinDir: elsewhere})
	if _, err := another.Attach(nic, "nic", Auto); !errors.Is(err, ErrForeign) {
		t.Errorf("Attach does not agree: %v", err)
	}
	attach(t, another, peer, "peer", Auto)
	must(t, Replaceable(elsewhere, peer, "peer"))
	at, wrong := another.linkPin(hookXDP, peer), another.linkPin(hookXDP, nic)
	must(t, os.Rename(at, wrong))
	if err := Replaceable(elsewhere, nic, "nic"); !errors.Is(err, ErrForeign) {
		t.Errorf("the pin is of another link: %v", err)
	}
	must(t, os.Rename(wrong, at))
	if err := Replaceable(c.PinDir, 1<<20, "none"); !errors.Is(err, ErrDeviceGone) {
		t.Errorf("no interface: %v", err)
	}
	must(t, another.Close(true))
	must(t, s.Close(true))
}

// TestDetachOthersKeepsConfigured: a configured interface that could not be attached yet keeps a
// predecessor's programs. An interface that is attached, was removed from the configuration or no
// longer exists does not.
func TestDetachOthersKeepsConfigured(t *testing.T) {
	isolate(t)
	nic, left := veth(t, "nic", "left")
	gone, _ := veth(t, "gone", "away")
	c := Config{PinDir: pinDir(t)}
	s := load(t, c)
	for name, ifindex := range map[string]int{"nic": nic, "left": left, "gone": gone} {
		attach(t, s, ifindex, name, Auto)
		must(t, s.AttachEgress(ifindex, name))
	}
	must(t, s.Close(false))
	remove(t, "gone")
	s = load(t, c)
	must(t, s.DetachOthers(nic, gone))
	if got, want := pins(t, c.PinDir), fmt.Sprintf("[tcx_%d xdp_%d]", nic, nic); got != want {
		t.Errorf("pinned links %s, want %s", got, want)
	}
	attach(t, s, nic, "nic", Auto)
	must(t, s.DetachOthers(nic, gone))
	if got, want := pins(t, c.PinDir), fmt.Sprintf("[xdp_%d]", nic); got != want {
		t.Errorf("attached, and without its egress program: pinned links %s, want %s", got, want)
	}
	must(t, s.Close(true))
}
