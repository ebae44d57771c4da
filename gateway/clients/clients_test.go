package clients

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
)

// client returns a client of a daemon that serves g until the test ends.
func client(t *testing.T, g status.Gateway) *status.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := status.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	s := status.NewServer(g, slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(s.Shutdown(context.Background()), <-done); err != nil {
			t.Error(err)
		}
	})
	return status.NewClient(path)
}

// TestRates: the rate of a client is the sum over its flows. A flow that ended reduces no rate, and
// a flow that began counts from 0.
func TestRates(t *testing.T) {
	g := statustest.New()
	flows := func(bytes ...uint64) {
		g.Many(len(bytes))
		g.EachFlow(func(i int, v *status.FlowView) {
			v.Client = netip.AddrPortFrom(netip.MustParseAddr("198.51.100.7"), uint16(1000+i))
			v.Traffic = &status.FlowTraffic{ToBackend: bytes[i] / 100, ToClientBytes: bytes[i]}
			if bytes[i] == 0 {
				v.Client, v.Traffic = netip.MustParseAddrPort("203.0.113.9:7"), nil
			}
		})
	}
	at := time.Unix(1000, 0)
	s := New(client(t, g), func() time.Time { return at })
	for i, step := range []struct {
		bytes []uint64
		flows int
		rated bool
		rate  float64
	}{
		{[]uint64{10000, 500}, 2, false, 0},
		{[]uint64{30000, 500}, 2, true, 10000},
		{[]uint64{30000, 500, 4000}, 3, true, 2000},
		{[]uint64{32000}, 1, true, 1000},
		{[]uint64{200, 0}, 1, true, 100}, // another flow with the same ports
	} {
		flows(step.bytes...)
		at = at.Add(2 * time.Second)
		list, _, err := s.Ask(t.Context())
		if err != nil || len(list) == 0 {
			t.Fatal(list, err)
		}
		if r := list[0]; r.Flows != step.flows || r.Rated != step.rated || r.Bytes != step.rate {
			t.Errorf("step %d: %+v, want %+v", i, r, step)
		}
	}
	g.Many(3)
	if list, note, err := s.Ask(t.Context()); err != nil || len(list) != 3 || note == "" || list[0].Rated {
		t.Errorf("flows without counts: %+v %q, %v", list, note, err)
	}
}

// TestOrder: clients with most bytes come first, before those with most flows.
func TestOrder(t *testing.T) {
	g := statustest.New()
	g.Many(3)
	bytes := uint64(0)
	each := func() {
		bytes += 1000
		g.EachFlow(func(i int, v *status.FlowView) {
			v.Client = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(min(i, 1))}), uint16(1000+i))
			if i == 0 {
				v.Traffic = &status.FlowTraffic{ToClient: 1, ToClientBytes: bytes}
			}
		})
	}
	at := time.Unix(1000, 0)
	s := New(client(t, g), func() time.Time { at = at.Add(time.Second); return at })
	for i, first := range []string{"192.0.2.1", "192.0.2.0"} {
		each()
		list, _, err := s.Ask(t.Context())
		if err != nil || len(list) != 2 || list[0].Address.String() != first {
			t.Errorf("answer %d: %+v, %v; want %s first", i, list, err, first)
		}
	}
}
