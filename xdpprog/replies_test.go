//go:build root

package xdpprog

import (
	"testing"
	"time"
)

// TestMoveReplies: when the range of source ports moves, replies to both ranges are steered;
// Reconcile keeps only the ports that flows use.
func TestMoveReplies(t *testing.T) {
	const next, nextCount = snatFirst + 500, 1000 // half of it is new
	rules := fixture()
	rules.Replies = nil
	b := newRig(t, Settings{SNATFirst: snatFirst, SNATCount: snatCount}, rules)
	b.beat(time.Second)
	takes := func(dport uint16) bool {
		t.Helper()
		four := pkt{src: plain4, dst: snat4, proto: tcp, sport: 80, dport: dport}
		six := pkt{src: plain6, dst: snat6, proto: udp, sport: 80, dport: dport}
		got := b.wants(t, four.frame()) == steers
		if other := b.wants(t, six.frame()) == steers; got != other {
			t.Errorf("port %d: IPv4 %v, IPv6 %v", dport, got, other)
		}
		return got
	}
	want := func(when string, ports map[uint16]bool) {
		t.Helper()
		for port, taken := range ports {
			if got := takes(port); got != taken {
				t.Errorf("%s: a reply to port %d is steered: %v, want %v", when, port, got, taken)
			}
		}
	}
	must(t, b.MoveReplies(next, nextCount))
	want("moved", map[uint16]bool{snatFirst - 1: false, snatFirst: true, snatFirst + 499: true, next: true,
		next + nextCount - 1: true, next + nextCount: false})
	must(t, b.SetSettings(Settings{SNATFirst: next, SNATCount: nextCount}))
	want("other settings", map[uint16]bool{snatFirst: true, next + nextCount - 1: true})
	flow := NodePort{Proto: tcp, Port: snatFirst + 7}
	rules.Replies = []NodePort{flow, {V6: true, Proto: udp, Port: snatFirst + 7}}
	if _, err := b.Reconcile(rules); err != nil {
		t.Fatal(err)
	}
	want("reconciled", map[uint16]bool{snatFirst: false, snatFirst + 7: true, next: true})
	must(t, b.CloseReply(flow))
	must(t, b.CloseReply(NodePort{V6: true, Proto: udp, Port: snatFirst + 7}))
	want("closed", map[uint16]bool{snatFirst + 7: false, next: true})
}

// TestMoveRepliesFromUnknown: maps without settings do not show the former range of replies: all
// ports that a flow can have are steered until Reconcile.
func TestMoveRepliesFromUnknown(t *testing.T) {
	rules := fixture()
	rules.Replies = nil
	b := newRig(t, Settings{}, rules)
	b.beat(time.Second)
	must(t, b.MoveReplies(snatFirst, snatCount))
	for port, want := range map[uint16]int{1023: kernel, 1024: steers, snatFirst: steers, 65535: steers} {
		p := pkt{src: plain4, dst: snat4, proto: tcp, sport: 80, dport: port}
		if got := b.wants(t, p.frame()); got != want {
			t.Errorf("port %d: verdict %d, want %d", port, got, want)
		}
	}
}
