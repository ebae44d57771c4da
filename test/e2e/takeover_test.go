//go:build root

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/topo"
)

// number sends numbered datagrams to a VIP, so few at a time that what is missing was lost by the
// gateway.
func (l *lab) number(h *topo.Host, from netip.Addr, to netip.AddrPort) *topo.Numbered {
	l.t.Helper()
	return l.numberAt(0, h, from, to)
}

// numberAt is number with a rate.
func (l *lab) numberAt(rate int, h *topo.Host, from netip.Addr, to netip.AddrPort) *topo.Numbered {
	l.t.Helper()
	n, err := h.Number(topo.NumberedLoad{From: from, To: to, Rate: rate})
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

// TestTakeOver: one process after the other takes over from the one that runs, under established
// connections and numbered datagrams of both families: none is lost or comes twice, no connection
// breaks. The laws of the last process hold over all of them (lab.close).
func TestTakeOver(t *testing.T) {
	rounds, open := 3, 200
	if full() {
		rounds, open = 50, 1000
	}
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}, options: handsOver,
		lasts: 10 * time.Minute})
	flows, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, webPort),
		at(vip6, webPort)}, Flows: open, Interval: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	client := l.Clients[0]
	loads := []*topo.Numbered{l.number(client, client.Addr4(), at(vip4, dnsPort)),
		l.number(client, client.Addr6(), at(vip6, dnsPort))}
	var gaps []time.Duration
	for round := range rounds {
		if err := l.gate.LaunchNext(); err != nil {
			t.Fatal(err)
		}
		if err := l.gate.TakenOver(l.ctx); err != nil {
			t.Fatalf("round %d: %v\n%s", round, err, l.gate.Log())
		}
		v, err := l.gate.Applied(l.ctx)
		if err != nil {
			t.Fatalf("round %d: %v\n%s", round, err, l.gate.Log())
		}
		if v.TakeOver == nil || v.TakeOver.At.IsZero() || v.TakeOver.Flows < uint64(open) {
			t.Fatalf("round %d: %+v\n%s", round, v.TakeOver, l.gate.Log())
		}
		if pid, err := status.PeerPID(l.gate.Socket()); pid != l.gate.PID() || err != nil {
			t.Fatalf("round %d: process %d listens on the status socket, %v: probes go by that", round, pid, err)
		}
		gap := time.Duration(v.TakeOver.GapMicros) * time.Microsecond
		if gaps = append(gaps, gap); gap > 5*time.Millisecond {
			_, parts, _ := strings.Cut(l.gate.Log()[strings.LastIndex(l.gate.Log(), "msg=\"taken over"):], "gap=")
			parts, _, _ = strings.Cut(parts, "\n")
			t.Logf("round %d: packets waited %s", round, parts)
		}
		for family, n := range loads {
			want := n.Answered() + 1000
			if err := topo.Until(l.ctx, 10*time.Second, 10*time.Millisecond, func(context.Context) error {
				if got := n.Answered(); got < want {
					return fmt.Errorf("%d datagrams answered, want %d", got, want)
				}
				return nil
			}); err != nil {
				t.Fatalf("round %d, load %d: %v\n%s", round, family, err, l.gate.Log())
			}
		}
	}
	slices.Sort(gaps)
	t.Logf("%d hand-overs: packets waited %v (median), %v (p99), %v (most)", rounds, gaps[len(gaps)/2],
		gaps[min(len(gaps)-1, len(gaps)*99/100)], gaps[len(gaps)-1])
	for family, n := range loads {
		sent, lost, repeated, err := n.Finish()
		t.Logf("load %d: %d numbered datagrams each way, %d lost, %d repeated", family, sent, lost, repeated)
		if lost > 0 || repeated > 0 || err != nil {
			t.Errorf("load %d: %d of %d lost, %d repeated, %v", family, lost, sent, repeated, err)
		}
	}
	l.handOver() // as before: what has been taken over can be left to a next process
	if err := l.gate.Start(l.ctx); err != nil {
		t.Fatal(err)
	}
	l.wantUnbroken(flows, open, fmt.Sprintf("%d hand-overs and a restart", rounds))
	l.handOverNoMore()
}
