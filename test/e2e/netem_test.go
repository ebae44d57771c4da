//go:build root

package e2e

import (
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// TestNetem: wires that lose, double, reorder and damage packets, in both directions on both sides
// of the gateway, under 1,000 transfers, and under 250 more all at once. They arrive as they were
// sent, and the gateway drops nothing but what was damaged, and names it.
func TestNetem(t *testing.T) {
	machine.Need(t, machine.Netem)
	const each = 250 // of five
	l := newLab(t, labConfig{small: true, Config: topo.Config{Clients: 2, Backends: 4, Queues: 2}, damaging: true})
	l.equalTransfers(16) // next hops are known from now on
	for _, c := range []struct {
		name string
		topo.Impairment
		// What the gateway may drop, and must have dropped some of.
		drops map[string]bool
		// What kernels have counted, of which at least one must not be zero: the wires did what
		// they should.
		noticed []string
	}{
		{name: "loss", Impairment: topo.Impairment{Loss: 2}, noticed: []string{"TcpRetransSegs"}},
		{name: "duplication", Impairment: topo.Impairment{Duplicate: 5}, noticed: []string{"TcpExtTCPDSACKOldSent",
			"TcpExtTCPDSACKRecv"}},
		{name: "reordering", Impairment: topo.Impairment{Reorder: 25, Delay: 5 * time.Millisecond},
			noticed: []string{"TcpExtTCPOFOQueue"}},
		{name: "corruption", Impairment: topo.Impairment{Corrupt: 1}, noticed: []string{"TcpInCsumErrors"},
			drops: map[string]bool{"ipv4_checksum": true}},
		{name: "all at once", Impairment: topo.Impairment{Loss: 1, Duplicate: 2, Reorder: 10, Corrupt: 0.5,
			Delay: 2 * time.Millisecond},
			noticed: []string{"TcpInCsumErrors"}, drops: map[string]bool{"ipv4_checksum": true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l.t = t
			dropsBefore, rxBefore := l.netemCounts()
			l.countFromNow()
			began := time.Now()
			if err := l.Impair(c.Impairment); err != nil {
				t.Fatal(err)
			}
			bytes := l.equalTransfers(each)
			lost, err := l.Repair()
			if err != nil {
				t.Fatal(err)
			}
			l.checkLaws()
			dropped, rx := l.netemCounts()
			for reason, n := range dropsBefore {
				dropped[reason] -= n
			}
			maps.DeleteFunc(dropped, func(_ string, n uint64) bool { return n == 0 })
			noticed := l.noticed(c.noticed)
			t.Logf("%d transfers, %d bytes, in %v, all digests equal; the wires lost %d packets; kernels noticed %v; "+
				"the gateway received %d packets and dropped %v",
				each, bytes, time.Since(began).Round(time.Second), lost, noticed, rx-rxBefore, dropped)
			if (lost > 0) != (c.Loss > 0) {
				t.Errorf("the wires lost %d packets", lost)
			}
			if len(noticed) == 0 {
				t.Errorf("no kernel counted any of %v: the wires did not do what they should", c.noticed)
			}
			for reason := range c.drops {
				if dropped[reason] == 0 {
					t.Errorf("the gateway dropped nothing as %s", reason)
				}
			}
			if c.Corrupt == 0 {
				l.checkDamage()
				for _, late := range lateReasons {
					delete(dropped, late)
				}
				if len(dropped) > 0 {
					t.Errorf("undamaged packets were dropped: %v", dropped)
				}
			}
		})
		l.t = t
	}
}

// lateReasons are why the gateway drops undamaged packets where others are lost or late: a
// connection whose SYN came a third time went to another endpoint, and the first one answers after
// all; or it is over, and its last packets come again.
var lateReasons = [...]string{"late_answer", "no_flow"}

// netemCounts is what the gateway dropped so far, but for its kernel's own neighbour discovery on
// the host link, and received.
func (l *lab) netemCounts() (dropped map[string]uint64, rx uint64) {
	l.t.Helper()
	s, err := l.gate.Client.Stats(l.ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	dropped = drops(&s)
	delete(dropped, "host_link_other")
	return dropped, sum(&s, func(w *status.WorkerView) uint64 { return w.Rx })
}

// countFromNow has what kernels count judged from now on.
func (l *lab) countFromNow() {
	l.t.Helper()
	for h := range l.damage {
		var err error
		if l.damage[h], err = h.Counters(); err != nil {
			l.t.Fatal(err)
		}
	}
}

// noticed is what the hosts' kernels have counted under some names since countFromNow, without
// zeros.
func (l *lab) noticed(names []string) map[string]uint64 {
	l.t.Helper()
	all := map[string]uint64{}
	for h, before := range l.damage {
		now, err := h.Counters()
		if err != nil {
			l.t.Fatal(err)
		}
		since := now.Since(before)
		for _, name := range names {
			all[name] += since[name]
		}
	}
	maps.DeleteFunc(all, func(_ string, n uint64) bool { return n == 0 })
	return all
}

// equalTransfers makes so many, of 1 byte to 16 KiB, one half each way, both families, from all
// clients, several at a time. Each compares digests at both ends; one that fails fails the test. It
// returns how many bytes they were.
func (l *lab) equalTransfers(n int) int64 {
	l.t.Helper()
	const atOnce = 24
	var next, bytes atomic.Int64
	var running sync.WaitGroup
	errs := make(chan error, n)
	for range atOnce {
		running.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				size := int64(1 + i*i*7919%(16<<10))
				bytes.Add(size)
				if err := l.transferOne(i, size); err != nil {
					errs <- fmt.Errorf("transfer %d of %d bytes: %w", i, size, err)
				}
			}
		})
	}
	running.Wait()
	close(errs)
	shown := 0
	for err := range errs {
		if shown++; shown <= 10 {
			l.t.Error(err)
		}
	}
	if shown > 10 {
		l.t.Errorf("%d transfers failed", shown)
	}
	return bytes.Load()
}

func (l *lab) transferOne(i int, size int64) error {
	client := l.Clients[i%len(l.Clients)]
	target := [...]netip.AddrPort{at(vip4, webPort), at(vip6, webPort)}[i/2%2]
	transfer := client.Download
	if i/4%2 == 0 {
		transfer = client.Upload
	}
	got, err := transfer(l.ctx, target, size)
	if err == nil && got.Bytes != size {
		err = fmt.Errorf("%d bytes arrived", got.Bytes)
	}
	return err
}
