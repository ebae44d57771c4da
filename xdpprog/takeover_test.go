//go:build root

package xdpprog

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPrepare: a second process prepares beside one that works, changes nothing, and owns all once
// it has the lock: rules stay, and the program is replaced when it has its own sockets.
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
	must(t, next.Close(false)) // one that is not to take over
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
		must(t, port.Check()) // the other program is in force until this one has all
		filled = true
		return p.SetQueues(1)
	})
	must(t, err)
	if !filled {
		t.Error("the program was attached without its sockets")
	}
	must(t, replaced.Check())
	if err := port.Check(); err == nil {
		t.Error("the program was not replaced")
	}
	if id := linkID(t, replaced.link); id != linkID(t, port.link) {
		t.Errorf("another link: there was a moment without a program")
	}
	must(t, first.Close(false))
	if _, err := Load(c); !errors.Is(err, ErrInUse) {
		t.Errorf("the lock did not go with its descriptor: %v", err)
	}
	must(t, next.Close(true))
}

// TestPrepareMisfits: maps of another size are refused, and stay.
func TestPrepareMisfits(t *testing.T) {
	isolate(t)
	c := Config{PinDir: pinDir(t)}
	if _, err := Prepare(c); !errors.Is(err, ErrMisfit) {
		t.Errorf("without a process at work: %v", err)
	}
	first := load(t, c)
	before := pins(t, c.PinDir)
	other := c
	other.MaxFrontends = 1000
	if _, err := Prepare(other); !errors.Is(err, ErrMisfit) {
		t.Errorf("another size: %v", err)
	}
	if after := pins(t, c.PinDir); after != before {
		t.Errorf("pins %q, before %q", after, before)
	}
	must(t, first.Close(true))
}
