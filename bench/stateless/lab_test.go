package stateless

import (
	"net/netip"
	"testing"
	"time"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// loopback is a pair of ports and traffic between them.
func loopback(tb testing.TB, queues int) Config {
	tb.Helper()
	l, err := NewLoopback(queues)
	must(tb, err)
	tb.Cleanup(func() { must(tb, l.Close()) })
	t := traffic4()
	t.DestinationMAC, err = l.B.MAC()
	must(tb, err)
	return Config{Traffic: t, Tx: Tx{Port: l.A, Queues: queues}, Rx: Rx{Port: l.B, Settle: 20 * time.Millisecond}}
}

// traffic4 is 1,000 UDP flows.
func traffic4() Traffic {
	return Traffic{
		Sources:          Addresses{First: netip.MustParseAddr("10.1.255.250"), Count: 10},
		Destinations:     Addresses{First: netip.MustParseAddr("10.2.0.1")},
		SourcePorts:      Ports{1024, 1123},
		DestinationPorts: Ports{First: 80},
		Flows:            1000,
	}
}

func open(tb testing.TB, c Config) *Lab {
	tb.Helper()
	l, err := Open(tb.Context(), c)
	must(tb, err)
	tb.Cleanup(func() { must(tb, l.Close()) })
	return l
}

func TestCountsAreExact(t *testing.T) {
	for _, source := range []Source{AFXDP, LiveFrames} {
		for _, method := range []Method{Count, Full} {
			t.Run(source.String()+" "+method.String(), func(t *testing.T) {
				c := loopback(t, 2)
				c.Tx.Source, c.Rx.Method = source, method
				lab := open(t, c)
				for _, packets := range []uint64{1, 999, 5000} {
					checkCounts(t, lab, packets)
				}
			})
		}
	}
}

func checkCounts(t *testing.T, lab *Lab, packets uint64) {
	t.Helper()
	r, err := lab.Trial(t.Context(), Load{Packets: packets, Rate: 100_000})
	must(t, err)
	if r.Sent.Packets != packets || r.Received.Packets != packets || r.Lost() != 0 {
		t.Errorf("sent %d, received %d of %d", r.Sent.Packets, r.Received.Packets, packets)
	}
	if want := int(min(packets, 1000)); r.Received.Flows != want || r.Sent.Flows != want {
		t.Errorf("%d packets: %d flows sent, %d received, want %d", packets, r.Sent.Flows, r.Received.Flows, want)
	}
	if want := packets * 60; r.Sent.Bytes != want || r.Received.Bytes != want {
		t.Errorf("%d bytes sent, %d received, want %d", r.Sent.Bytes, r.Received.Bytes, want)
	}
	c := &r.Received
	if c.Foreign+c.Duplicates+c.Reordered+c.Damaged+c.Moved+c.Renamed+c.Starved > 0 || len(c.Violations) > 0 || len(r.Drops) > 0 {
		t.Errorf("something is wrong: %+v, %v", c, r.Drops)
	}
	if h := c.Latency; h != nil && (h.Count() != int64(packets) || h.Max() > time.Second) {
		t.Errorf("%d latencies, the highest %v", h.Count(), h.Max())
	} else if h != nil {
		t.Logf("latency of %d packets: median %v, p99 %v", packets, h.Percentile(50), h.Percentile(99))
	}
}
