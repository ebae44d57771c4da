package rollout

import (
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/observer"
)

func TestJudge(t *testing.T) {
	zero := time.Unix(1000, 0)
	at := func(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	addr := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 0, n}) }
	syn := func(ms int, pod byte, port uint16, sequence uint32) observer.Packet {
		return observer.Packet{At: at(ms), Src: netip.AddrPortFrom(addr(200), port), Dst: netip.AddrPortFrom(addr(pod),
			podPort), Sequence: sequence}
	}
	pods := []*pod{
		{addr: addr(1), left: at(1000), died: at(2000)},
		{addr: addr(2), left: at(3000), died: at(4000)},
		{addr: addr(3)}, // stays
	}
	for _, tc := range []struct {
		name string
		syns []observer.Packet
		want stale
	}{
		{"before they leave, and to one that stays", []observer.Packet{syn(999, 1, 1, 1), syn(2999, 2, 1, 2),
			syn(9000, 3, 1, 3)}, stale{}},
		{"in the grace", []observer.Packet{syn(1500, 1, 1, 1)}, stale{terminating: 1, longest: 500 * time.Millisecond,
			last: at(1500)}},
		{"dead", []observer.Packet{syn(2600, 1, 1, 1)}, stale{dead: 1, longest: 1600 * time.Millisecond,
			last: at(2600)}},
		{"after the last change", []observer.Packet{syn(3200, 2, 1, 1), syn(5000, 1, 2, 2)},
			stale{terminating: 1, dead: 1, longest: 4 * time.Second, converged: 2 * time.Second, last: at(5000)}},
		{"sent again", []observer.Packet{syn(1900, 1, 1, 1), syn(2900, 1, 1, 1)},
			stale{terminating: 1, longest: 900 * time.Millisecond, last: at(1900)}},
		{"the same port, another connection", []observer.Packet{syn(1900, 1, 1, 1), syn(2900, 1, 1, 2)},
			stale{terminating: 1, dead: 1, longest: 1900 * time.Millisecond, last: at(2900)}},
	} {
		var a arrivals
		for _, p := range tc.syns {
			a.add(p)
		}
		if got := judge(pods, a.all()); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

func TestCount(t *testing.T) {
	zero := time.Unix(1000, 0)
	list := []attempt{
		{began: zero.Add(-1), rolling: true, failure: "early"},
		{began: zero, rolling: true, connect: time.Millisecond},
		{began: zero.Add(1), rolling: true, connect: 1100 * time.Millisecond},
		{began: zero.Add(2), rolling: true, connect: 3 * time.Millisecond, failure: "no answer in time"},
		{began: zero.Add(3), rolling: false, connect: 9 * time.Second},
		{began: zero.Add(5), rolling: true, failure: "late"},
	}
	got := count(list, true, zero, zero.Add(4))
	if got.Tried != 3 || got.Failed != 1 || got.Slow != 1 || got.Failures["no answer in time"] != 1 ||
		got.P50 != 1100*time.Millisecond || got.Max != 1100*time.Millisecond {
		t.Errorf("%+v", got)
	}
}
