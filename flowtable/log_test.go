package flowtable

import (
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/size"
)

// logged returns a table with a log, and a handle.
func logged(t testing.TB, ring int) (*Log, *Handle) {
	t.Helper()
	table, err := NewHeap(Config{IPv4Flows: 64, IPv6Flows: 64, Timeouts: DefaultTimeouts()})
	if err != nil {
		t.Fatal(err)
	}
	l, err := table.StartLog(ring, make([]byte, table.AccountBytes()), true)
	if err != nil {
		t.Fatal(err)
	}
	h, err := table.Register()
	if err != nil {
		t.Fatal(err)
	}
	return l, h
}

func (l *Log) all() (list []Event) {
	l.Read(func(e *Event) { list = append(list, *e) })
	return list
}

const logStart = Time(1e15)

// newLogged makes a flow n of a family.
func newLogged(t testing.TB, h *Handle, proto uint8, v6 bool, n byte, now Time) Ref {
	t.Helper()
	addr := func(last byte) (a header.Addr) {
		if v6 {
			return header.Addr{0: 0x20, 1: 1, 15: last}
		}
		return header.Addr{10: 0xff, 11: 0xff, 12: 10, 15: last}
	}
	r, s := h.Create(now, &NewFlow{
		Client:  header.Tuple{Src: addr(n), SrcPort: 1000, Dst: addr(200), DstPort: 80, Proto: proto, V6: v6},
		Backend: addr(201), BackendPort: 8080, Source: addr(202), SourcePort: 3000 + uint16(n),
		Service: 5, BackendRef: 6,
	})
	if s != Created {
		t.Fatalf("Create: %v", s)
	}
	return r
}

// TestLogEnds: each way in which a flow ends has its reason, and each flow has one begin and one
// end.
func TestLogEnds(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, tt := range []struct {
			name  string
			proto uint8
			end   func(*Handle, Ref, Time)
			want  End
			state State
			after time.Duration
		}{
			{"deleted", header.ProtoTCP, func(h *Handle, r Ref, _ Time) { h.Delete(r) }, EndDeleted, SynSeen, 0},
			{"reopened", header.ProtoTCP, func(h *Handle, r Ref, _ Time) { h.DeleteFor(r, EndReopened) }, EndReopened,
				SynSeen, 0},
			{"moved", header.ProtoTCP, func(h *Handle, r Ref, now Time) { h.Abandon(r, now) }, EndMoved, SynSeen, 0},
			{"swept", header.ProtoUDP, func(h *Handle, _ Ref, now Time) {
				for range h.t.positions()/SweepRecords + 1 {
					h.Sweep(now, SweepRecords)
				}
			}, EndTimeout, UDPNew, time.Hour},
			{"expired at the next packet of its client", header.ProtoUDP, func(h *Handle, _ Ref, now Time) {
				newLogged(t, h, header.ProtoUDP, h.t.arenas[0].fresh.Load() == 1, 1, now)
			}, EndTimeout, UDPNew, time.Hour},
			{"shed", header.ProtoUDP, func(h *Handle, _ Ref, now Time) {
				for n := range byte(64) {
					newLogged(t, h, header.ProtoUDP, h.t.arenas[0].fresh.Load() == 1, 100+n, now)
				}
			}, EndTimeout + End(ShedUnreplied), UDPNew, time.Second},
		} {
			t.Run(map[bool]string{false: "IPv4 ", true: "IPv6 "}[v6]+tt.name, func(t *testing.T) {
				l, h := logged(t, 256)
				h.Enter(logStart)
				r := newLogged(t, h, tt.proto, v6, 1, logStart)
				at := logStart + Time(tt.after)
				h.Enter(at)
				tt.end(h, r, at)
				h.Leave()
				var ends []Event
				begins := 0
				for _, e := range l.all() {
					if e.Begins {
						begins++
					} else {
						ends = append(ends, e)
					}
				}
				if uint64(begins) != h.t.Counts().Created[family(v6)] || len(ends) != 1 {
					t.Fatalf("%d begins, ends %+v, created %v", begins, ends, h.t.Counts().Created)
				}
				e := ends[0]
				if e.Ended != tt.want || e.State != tt.state || e.At != at || e.Proto != tt.proto || e.V6 != v6 ||
					logStart-e.Start > 1<<16 || e.Service != 5 || e.BackendRef != 6 ||
					e.Client.Port != 1000 || e.Frontend.Port != 80 || e.Source.Port != 3001 || e.Backend.Port != 8080 ||
					e.Client.Is4() == v6 {
					t.Errorf("%v: %+v", e.Ended, e)
				}
			})
		}
	}
}

// TestLogFull: a handle does not wait for the reader. Lost events are counted, and later ones are
// whole.
func TestLogFull(t *testing.T) {
	l, h := logged(t, 8)
	h.Enter(logStart)
	for n := range byte(12) {
		newLogged(t, h, header.ProtoUDP, false, n, logStart)
	}
	if h.LogRoom(1) || l.Lost() != 4 {
		t.Errorf("room %v, %d lost", h.LogRoom(1), l.Lost())
	}
	if list := l.all(); len(list) != 8 || list[7].Source.Port != 3007 {
		t.Errorf("%+v", list)
	}
	newLogged(t, h, header.ProtoUDP, false, 12, logStart)
	if list := l.all(); len(list) != 1 || list[0].Source.Port != 3012 || !h.LogRoom(8) {
		t.Errorf("%+v", list)
	}
}

// TestLogAllocates: neither a begin nor an end allocates.
func TestLogAllocates(t *testing.T) {
	_, h := logged(t, 256)
	n := testing.AllocsPerRun(500, func() { // more events than there is room for
		h.Enter(logStart)
		h.Delete(newLogged(t, h, header.ProtoTCP, false, 1, logStart))
		h.Leave()
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestAccountOfAnotherFlow: a flow that a process without a log has made in a record with an old
// account has no start.
func TestAccountOfAnotherFlow(t *testing.T) {
	l, h := logged(t, 256)
	h.Enter(logStart)
	r := newLogged(t, h, header.ProtoTCP, false, 1, logStart)
	h.Flow(r).sum++
	h.t.arenas[0].four[r.index()].sum = h.Flow(r).sum
	h.Delete(r)
	list := l.all()
	if e := list[len(list)-1]; e.Begins || e.Start != 0 {
		t.Errorf("%+v", e)
	}
}

// TestTraffic: the counts of a flow are exact, of any size and from several handles at once.
func TestTraffic(t *testing.T) {
	sizes, each := []uint32{60, 1514, 65535}, uint64(3*morePackets)
	if size.Race {
		sizes, each = sizes[:1], 2*morePackets
	}
	for _, bytes := range sizes {
		_, h := logged(t, 256)
		h.Enter(logStart)
		r := newLogged(t, h, header.ProtoUDP, true, 1, logStart)
		var workers sync.WaitGroup
		for range 2 {
			workers.Go(func() {
				for range each {
					h.Count(r, ReplySide, bytes)
				}
			})
		}
		for range each {
			h.Count(r, ClientSide, bytes)
		}
		workers.Wait()
		var f Info
		if !h.Inspect(r, logStart, &f) || !f.Metered ||
			f.Traffic != [2]Traffic{{each, each * uint64(bytes)}, {2 * each, 2 * each * uint64(bytes)}} {
			t.Errorf("%d bytes each: %+v", bytes, f.Traffic)
		}
		h.Delete(r)
		r = newLogged(t, h, header.ProtoUDP, true, 1, logStart)
		if h.Inspect(r, logStart, &f) && f.Traffic[0].Packets != 0 {
			t.Errorf("a new flow has %+v", f.Traffic)
		}
	}
}

// TestTrafficOfSeveralProcesses: the counts of a flow are not complete once a process has owned the
// table that does not count, nor when a later one counts again.
func TestTrafficOfSeveralProcesses(t *testing.T) {
	l, h := logged(t, 256)
	now := logStart
	h.Enter(now)
	var refs []Ref
	for _, step := range []struct {
		traffic bool
		metered []bool // of the flows of all steps so far
	}{
		{true, []bool{true}},
		{true, []bool{true, true}},
		{false, []bool{false, false, false}},
		{true, []bool{false, false, false, true}},
		{true, []bool{false, false, false, true, true}},
	} {
		now += Time(time.Second)
		l.traffic = step.traffic
		l.Own(now)
		now += Time(time.Second)
		refs = append(refs, newLogged(t, h, header.ProtoUDP, false, byte(len(refs)), now))
		for i, r := range refs {
			var f Info
			if !h.Inspect(r, now, &f) || f.Metered != step.metered[i] || f.Start == 0 {
				t.Errorf("after %d steps flow %d: %+v", len(refs), i, f)
			}
		}
	}
	l.all()
	for i, r := range refs {
		h.Delete(r)
		if list := l.all(); len(list) != 1 || list[0].Counted != (i > 2) {
			t.Errorf("end of flow %d: %+v", i, list)
		}
	}
	l.countedSince().Store(uint64(now) + 1e18) // of an earlier boot
	l.Own(now)
	var f Info
	if !h.Inspect(newLogged(t, h, header.ProtoUDP, false, 9, now+1e9), now+1e9, &f) || !f.Metered {
		t.Errorf("after a boot: %+v", f)
	}
}

// TestStartLogNeedsMemory: too little memory is an error.
func TestStartLogNeedsMemory(t *testing.T) {
	table, err := NewHeap(Config{IPv4Flows: 1, Timeouts: DefaultTimeouts()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.StartLog(8, make([]byte, table.AccountBytes()-1), false); err == nil {
		t.Error("no error")
	}
}

// TestEndNames: each reason has a name of its own.
func TestEndNames(t *testing.T) {
	seen := map[string]bool{}
	for e := range numEnds {
		if n := e.String(); n == "invalid" || seen[n] || n == "shed_never" {
			t.Errorf("%d: %s", e, n)
		}
		seen[e.String()] = true
	}
	if numEnds.String() != "invalid" || (EndTimeout+End(ShedIdle)).String() != "shed_idle" {
		t.Error("names", numEnds, EndTimeout+End(ShedIdle))
	}
}

// BenchmarkLog measures a flow that begins and ends, without and with a log.
func BenchmarkLog(b *testing.B) {
	for _, on := range []bool{false, true} {
		b.Run(map[bool]string{false: "off", true: "on"}[on], func(b *testing.B) {
			table, err := NewHeap(Config{IPv4Flows: 1 << 16, Timeouts: DefaultTimeouts()})
			if err != nil {
				b.Fatal(err)
			}
			var l *Log
			if on {
				if l, err = table.StartLog(1<<15, make([]byte, table.AccountBytes()), true); err != nil {
					b.Fatal(err)
				}
			}
			h, err := table.Register()
			if err != nil {
				b.Fatal(err)
			}
			now, n := logStart, 0
			for b.Loop() {
				now += Time(conn.Tick) / 1000
				h.Enter(now)
				h.Delete(newLogged(b, h, header.ProtoUDP, false, byte(n), now))
				h.Leave()
				if n++; n&0xfff == 0 && on {
					l.Read(func(*Event) {})
				}
			}
		})
	}
}

// TestLogOfGroup: a copy is logged by its owner alone, and a flow that yields to another gateway's
// is not one that somebody has deleted.
func TestLogOfGroup(t *testing.T) {
	table, err := NewHeap(Config{IPv4Flows: 64, IPv6Flows: 64, Timeouts: DefaultTimeouts(), Group: true})
	if err != nil {
		t.Fatal(err)
	}
	l, err := table.StartLog(16, make([]byte, table.AccountBytes()), true)
	if err != nil {
		t.Fatal(err)
	}
	h, err := table.Register()
	if err != nil {
		t.Fatal(err)
	}
	h.Enter(logStart)
	f := tracked(false, 1)
	own, s := h.Create(logStart, &f)
	if s != Created || !h.GiveUp(own) {
		t.Fatalf("%v, or the flow stays", s)
	}
	r := foreign(false, 2, Established)
	at, s := h.Copy(logStart, 1, &r)
	if s != Created {
		t.Fatal(s)
	}
	h.Delete(at)
	if list := l.all(); len(list) != 2 || !list[0].Begins || list[1].Begins || list[1].Ended != EndMoved {
		t.Errorf("logged %+v, want the begin and the end of one flow, moved", list)
	}
}
