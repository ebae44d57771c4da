//go:build root

package xsk

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/xsk/xsktest"
)

// driver simulates the part of the kernel's bind that chooses the mode, for drivers that the
// machine lacks: it carries out a bind in zero-copy mode to one of its devices in copy mode, and
// records it. The real kernel does everything else, so it has two registrations of one memory.
type driver struct {
	zeroCopy map[int]bool // interface indexes
	bound    map[int]bool // descriptors in zero-copy mode
	alone    int          // binds of sockets that registered the memory
}

func (d *driver) kernel() kernel {
	return kernel{bind: d.bind, options: d.options}
}

func (d *driver) bind(fd int, to *unix.SockaddrXDP) error {
	forced := to.Flags&unix.XDP_ZEROCOPY != 0
	if to.Flags&unix.XDP_SHARED_UMEM != 0 { // the mode of the registration, as xp_assign_dev_shared has it
		forced = d.bound[int(to.SharedUmemFD)]
	} else {
		d.alone++
	}
	if forced && !d.zeroCopy[int(to.Ifindex)] {
		return unix.EOPNOTSUPP
	}
	really := *to
	if to.Flags&unix.XDP_ZEROCOPY != 0 {
		really.Flags = to.Flags&^unix.XDP_ZEROCOPY | unix.XDP_COPY
	}
	if err := realKernel.bind(fd, &really); err != nil {
		return err
	}
	d.bound[fd] = forced
	return nil
}

func (d *driver) options(fd int) (uint32, error) {
	if d.bound[fd] {
		return unix.XDP_OPTIONS_ZEROCOPY, nil
	}
	return 0, nil
}

// TestMixedModes: devices with and without zero-copy on one UMEM, opened in every order that
// matters. Each gets its best mode, and packets pass between all of them.
func TestMixedModes(t *testing.T) {
	const has, reason = "the driver supports it", "the driver has no AF_XDP zero-copy"
	for _, tc := range []struct {
		name          string
		devices       string // z: a device with zero-copy, c: without
		modes         []Mode
		want          []Mode
		why           []string
		registrations int
	}{
		{"zero-copy, then copy", "zc", []Mode{Auto, Auto}, []Mode{ZeroCopy, Copy}, []string{has, reason}, 2},
		{"copy, then zero-copy", "cz", []Mode{Auto, Auto}, []Mode{Copy, ZeroCopy}, []string{reason, has}, 2},
		{"required beside a host link", "zzc", []Mode{ZeroCopy, ZeroCopy, Copy}, []Mode{ZeroCopy, ZeroCopy, Copy},
			[]string{has, has, "copy mode was requested"}, 2},
		{"copy on a device that has zero-copy", "zz", []Mode{Copy, Auto}, []Mode{Copy, ZeroCopy},
			[]string{"copy mode was requested", has}, 2},
		{"all zero-copy", "zzz", []Mode{Auto, Auto, Auto}, []Mode{ZeroCopy, ZeroCopy, ZeroCopy},
			[]string{has, has, has}, 1},
		{"all copy", "ccc", []Mode{Auto, Auto, Auto}, []Mode{Copy, Copy, Copy}, []string{reason, reason, reason}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			xsktest.EnterNamespace(t)
			d := &driver{zeroCopy: map[int]bool{}, bound: map[int]bool{}}
			r := newRig(t, 4096)
			var wires []*xsktest.Wire
			for i := range tc.devices {
				w := xsktest.NewWire(t, fmt.Sprintf("sl%d", i), fmt.Sprintf("sl%dp", i))
				d.zeroCopy[w.Index(t)] = tc.devices[i] == 'z'
				c := smallRings
				c.Mode, c.kernel = tc.modes[i], d.kernel()
				s := r.open(w, c)
				if m, why := s.Mode(); m != tc.want[i] || why != tc.why[i] {
					t.Errorf("%s is in %v, because %q; want %v, because %q", s.name, m, why, tc.want[i], tc.why[i])
				}
				wires = append(wires, w)
			}
			if n := registrations(r); n != tc.registrations {
				t.Errorf("the memory is registered %d times, want %d", n, tc.registrations)
			}
			exchange(t, r, wires[:2])
			if len(wires) > 2 {
				r.links[0], r.links[2] = r.links[2], r.links[0]
				wires[0], wires[2] = wires[2], wires[0]
				exchange(t, r, wires[:2])
			}
		})
	}
}

func registrations(r *rig) (n int) {
	for _, s := range r.links {
		if s.registered {
			n++
		}
	}
	return n
}

// TestMixedModesReopened: a registration of either mode that lost its last socket is made again.
func TestMixedModesReopened(t *testing.T) {
	xsktest.EnterNamespace(t)
	d := &driver{zeroCopy: map[int]bool{}, bound: map[int]bool{}}
	wires := []*xsktest.Wire{xsktest.NewWire(t, "sl0", "sl0p"), xsktest.NewWire(t, "sl1", "sl1p")}
	r := newRig(t, 2048)
	c := smallRings
	c.kernel = d.kernel()
	d.zeroCopy[wires[0].Index(t)] = true
	r.open(wires[0], c)
	r.open(wires[1], c)
	for i, want := range []Mode{ZeroCopy, Copy} {
		exchange(t, r, wires)
		var kept *KeptError
		if err := r.links[i].Close(r.pool); err != nil && !errors.As(err, &kept) {
			t.Fatal(err)
		}
		r.law("closed")
		if s := r.reopen(i, wires[i], c); s.mode != want || !s.registered {
			t.Errorf("%s: mode %v, registered %v; want %v and a registration of its own", s.name, s.mode, s.registered,
				want)
		}
	}
	exchange(t, r, wires)
}

// TestKnownWithout: Open tries zero-copy once for a device whose driver does not have it, not once
// for each queue.
func TestKnownWithout(t *testing.T) {
	xsktest.EnterNamespace(t)
	d := &driver{zeroCopy: map[int]bool{}, bound: map[int]bool{}}
	xsktest.NewQueues(t, "sl0", "sl0p", 3)
	r := newRig(t, 2048)
	c := smallRings
	c.Interface, c.UMEM, c.kernel = "sl0", r.umem, d.kernel()
	for c.Queue = range 3 {
		s, err := Open(t.Context(), c)
		must(t, err)
		r.links = append(r.links, s)
	}
	if d.alone != 2 { // one refused, and the same socket in copy mode; two that joined
		t.Errorf("%d binds of sockets that registered the memory, want 2", d.alone)
	}
}

// TestMemlockTwice: if the limit allows the frames once, sockets of one mode work. Open of a socket
// that requires the other mode returns ErrMemlock, and one in Auto gets the existing mode.
func TestMemlockTwice(t *testing.T) {
	xsktest.EnterNamespace(t)
	d := &driver{zeroCopy: map[int]bool{}, bound: map[int]bool{}}
	first, second := xsktest.NewWire(t, "sl0", "sl0p"), xsktest.NewWire(t, "sl1", "sl1p")
	d.zeroCopy[second.Index(t)] = true
	u, err := NewUMEM(UMEMConfig{Frames: 512, FrameSize: 2048})
	must(t, err)
	defer func() { must(t, u.Close()) }()
	xsktest.LimitMemlock(t, 512*2048*3/2)
	c := Config{UMEM: u, kernel: d.kernel(), Interface: first.Dev}
	a, err := Open(t.Context(), c)
	must(t, err)
	defer func() { must(t, a.Close(nil)) }()
	c.Interface, c.Mode = second.Dev, ZeroCopy
	if _, err := Open(t.Context(), c); !errors.Is(err, ErrMemlock) {
		t.Errorf("zero-copy required, which would lock the frames again: %v", err)
	}
	c.Mode = Auto
	b, err := Open(t.Context(), c)
	must(t, err)
	defer func() { must(t, b.Close(nil)) }()
	if m, why := b.Mode(); m != Copy || !strings.Contains(why, "RLIMIT_MEMLOCK") {
		t.Errorf("%v, because %q; want copy mode because of the limit", m, why)
	}
}
