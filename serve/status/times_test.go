package status

import (
	"reflect"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/nat/header"
)

// TestTimes: times belong to their backend and to its service; the service keeps those of a removed
// backend, and the next owner of the index begins without.
func TestTimes(t *testing.T) {
	times := new(stats.Times)
	times.Ensure(3)
	totals := NewTotals([]*stats.Block{{Times: times}, {Times: times}})
	first, next := services.MakeBackendRef(1, 1), services.MakeBackendRef(1, 2)
	snapshot := func(refs ...services.BackendRef) *services.Snapshot {
		b := services.NewBuilder(nil)
		svc := &services.Service{ID: 1, Namespace: "default", Name: "web", Proto: header.ProtoTCP, Port: 80}
		b.SetService(svc)
		b.SetFrontend(&services.Frontend{Key: services.FrontendKey{Addr: header.Addr{15: 1}, Port: 80,
			Proto: header.ProtoTCP}, Service: svc})
		for i, r := range refs {
			b.SetBackend(services.Backend{Addr: header.Addr{15: byte(10 + i)}, Port: 8080, Proto: header.ProtoTCP,
				Service: 1, Ref: r})
		}
		return b.Build()
	}
	for range 3 {
		times.Count(1).Answer.Add(150 * time.Millisecond)
	}
	times.Count(1).Answer.Add(time.Second)
	times.Count(1).RepeatedSYNs.Add(2)
	times.Count(2).Answer.Add(time.Second)
	other := services.MakeBackendRef(2, 1)
	before := AllTimes(snapshot(first, other), totals)
	if n := len(before.Backends); n != 2 {
		t.Fatalf("%d backends", n)
	}
	got, of := before.Backends[0].TimesView, before.Services[0].TimesView
	if got.RepeatedSYNs != 2 || got.Answer.Count != 4 || got.Answer.SumMicros != 1_450_000 || of.Answer.Count != 5 {
		t.Errorf("backend %+v, service %+v", got, of)
	}
	for name, v := range map[string]struct{ got, want uint64 }{
		"median of the backend":      {got.Answer.MedianMicros, 150_000},
		"99th percentile":            {got.Answer.P99Micros, 1_000_000},
		"median of the service":      {of.Answer.MedianMicros, 160_000},
		"handshakes, of which is no": {got.Handshake.MedianMicros, 0},
	} {
		if off := int64(v.got) - int64(v.want); off > int64(v.want/8) || -off > int64(v.want/8) {
			t.Errorf("%s: %d µs, want %d", name, v.got, v.want)
		}
	}

	totals.Retire(first, 1)
	for _, published := range []*services.Snapshot{snapshot(first, other), snapshot(other)} {
		if s := AllTimes(published, totals).Services[0]; s.Answer.Count != 5 || s.RepeatedSYNs != 2 {
			t.Errorf("while the backend leaves: %+v", s)
		}
	}
	totals.Close(first, 1)
	totals.Open(next)
	after := AllTimes(snapshot(next, other), totals)
	if b, s := after.Backends[0].TimesView, after.Services[0].TimesView; b.Answer.Count != 0 || s.Answer.Count != 5 ||
		s.RepeatedSYNs != 2 {
		t.Errorf("after the backend was replaced: backend %+v, service %+v", b, s)
	}
	times.Count(1).Answer.Add(2 * time.Second)
	since := AllTimes(snapshot(next, other), totals).Since(&after)
	if s := since.Services[0].Answer; s.Count != 1 || len(s.Buckets) != 1 || s.SumMicros != 2_000_000 ||
		since.Services[0].RepeatedSYNs != 0 || since.Backends[0].Answer.Count != 1 ||
		since.Backends[1].Answer.Count != 0 {
		t.Errorf("since the replacement: %+v, backends %+v", s, since.Backends)
	}
	if n := AllTimes(snapshot(), totals).Services; len(n) != 1 || n[0].RepeatedSYNs != 2 {
		t.Errorf("of a service without backends: %+v", n)
	}
	totals.Forget(1)
	if n := AllTimes(snapshot(), totals).Services; n[0].RepeatedSYNs != 0 {
		t.Errorf("of a new service with the number of a removed one: %+v", n)
	}
}

// TestTimesBeginAnew: the difference to a view of counters that have begun anew is their counts.
func TestTimesBeginAnew(t *testing.T) {
	histogram := func(from, n uint64) HistogramView {
		return HistogramView{Count: n, SumMicros: n * from, Buckets: []BucketView{{FromMicros: from, Count: n}}}
	}
	for name, c := range map[string]struct{ before, now TimesView }{
		"fewer refused":       {TimesView{Refused: 5}, TimesView{Refused: 3}},
		"fewer repeated SYNs": {TimesView{RepeatedSYNs: 5, Refused: 1}, TimesView{RepeatedSYNs: 4, Refused: 9}},
		"fewer resets":        {TimesView{ResetByClient: 1}, TimesView{ResetByBackend: 1}},
		"fewer answers":       {TimesView{Answer: histogram(64, 5)}, TimesView{Answer: histogram(64, 2)}},
		"other answers":       {TimesView{Answer: histogram(64, 5)}, TimesView{Answer: histogram(1024, 9)}},
		"fewer handshakes":    {TimesView{Handshake: histogram(64, 5)}, TimesView{Refused: 7}},
	} {
		if got := c.now.Minus(&c.before); !reflect.DeepEqual(got, c.now) {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	before, now := TimesView{Answer: histogram(64, 5), Refused: 2}, TimesView{Answer: histogram(64, 7), Refused: 2}
	if got := now.Minus(&before); got.Answer.Count != 2 || got.Answer.SumMicros != 128 || got.Refused != 0 {
		t.Errorf("counters that go on: got %+v", got)
	}
}
