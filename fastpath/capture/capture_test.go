package capture

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// TestRing: a reader that runs beside the worker gets each record once, in order and with its
// bytes, and the records that it does not get are counted.
func TestRing(t *testing.T) {
	const records = 200_000
	r := NewRing(1 << 14)
	written := make(chan uint64)
	go func() {
		random := rand.New(rand.NewPCG(1, 2))
		n := uint64(0)
		for at := range uint64(records) {
			size := random.IntN(1 << 11)
			if b, ok := r.Add(&Record{At: at, Bytes: uint32(size)}, size); ok {
				n++
				for i := range b {
					b[i] = byte(at)
				}
			}
			if at%8 == 0 {
				r.Publish()
				runtime.Gosched()
			}
		}
		r.Publish()
		written <- n
	}()
	var got, last uint64
	read := func() {
		r.Read(func(rec *Record, b []byte) bool {
			if got++; got > 1 && rec.At <= last || len(b) != int(rec.Bytes) {
				t.Errorf("record %d has %d bytes, after record %d", rec.At, len(b), last)
			}
			last = rec.At
			for _, x := range b {
				if x != byte(rec.At) {
					t.Errorf("record %d has byte %d", rec.At, x)
					break
				}
			}
			return true
		})
	}
	for {
		read()
		select {
		case n := <-written:
			read()
			if got != n || n+r.Lost.Load() != records || r.Lost.Load() == 0 {
				t.Errorf("%d read, %d written, %d lost of %d", got, n, r.Lost.Load(), records)
			}
			return
		default:
			runtime.Gosched()
		}
	}
}

// TestRewind: removed records are not read, and their room is used again.
func TestRewind(t *testing.T) {
	r := NewRing(1 << 12)
	for n := range uint64(1000) {
		before := r.Added()
		for range 3 {
			if b, ok := r.Add(&Record{At: n}, 700); !ok {
				t.Fatalf("no room in round %d", n)
			} else {
				binary.BigEndian.PutUint64(b, n)
			}
		}
		r.Rewind(before + 1)
		if at, ok := r.Peek(); ok {
			t.Fatalf("record of %d before Publish", at)
		}
		r.Publish()
		seen := 0
		r.Read(func(rec *Record, b []byte) bool {
			seen++
			if rec.At != n || binary.BigEndian.Uint64(b) != n {
				t.Fatalf("round %d: record of %d", n, rec.At)
			}
			return true
		})
		if seen != 1 {
			t.Fatalf("round %d: %d records", n, seen)
		}
	}
}

// TestRate: no second has more than the rate, whatever the arrivals, and a steady load gets nine
// tenths of it.
func TestRate(t *testing.T) {
	for _, perSecond := range []int{1, 10, 1000, 10_000} {
		var r rate
		r.each, r.burst = spacing(perSecond)
		random := rand.New(rand.NewPCG(3, 4))
		now, taken := uint64(time.Hour), []uint64{}
		const seconds = 5
		for end := now + seconds*second; now < end; {
			if random.IntN(1000) == 0 {
				now += uint64(random.IntN(second / 4)) // a pause, and a burst after it
			}
			now += uint64(random.IntN(second / perSecond / 2))
			if r.take(now, 1) {
				taken = append(taken, now)
			}
		}
		for i := range taken {
			if i+perSecond < len(taken) && taken[i+perSecond]-taken[i] < second {
				t.Fatalf("rate %d: more within %v", perSecond, time.Duration(taken[i+perSecond]-taken[i]))
			}
		}
		if len(taken) < seconds*perSecond/2 {
			t.Errorf("rate %d: only %d in %d s", perSecond, len(taken), seconds)
		}
	}
	var none rate
	if !none.take(1, 1000) {
		t.Error("a capture without a rate is bounded")
	}
}

func socketOf(s string) flowtable.Socket {
	ap := netip.MustParseAddrPort(s)
	a := header.AddrFrom(ap.Addr())
	return flowtable.SocketOf(&a, ap.Port())
}

func TestEndpoint(t *testing.T) {
	for _, c := range []struct {
		prefix string
		port   uint16
		socket string
		match  bool
	}{
		{"198.51.100.7/32", 0, "198.51.100.7:1", true}, {"198.51.100.7/32", 0, "198.51.100.8:1", false},
		{"198.51.100.7/32", 2, "198.51.100.7:1", false}, {"198.51.100.7/32", 1, "198.51.100.7:1", true},
		{"198.51.96.0/21", 0, "198.51.103.255:1", true}, {"198.51.96.0/21", 0, "198.51.104.0:1", false},
		{"0.0.0.0/0", 0, "198.51.100.7:1", true}, {"0.0.0.0/0", 0, "[2001:db8::1]:1", false},
		{"::/0", 0, "[2001:db8::1]:1", true}, {"2001:db8::/33", 0, "[2001:db8:7fff::1]:1", true},
		{"2001:db8::/33", 0, "[2001:db8:8000::1]:1", false}, {"2001:db8::1/128", 0, "[2001:db8::1]:1", true},
		{"2001:db8::1/128", 0, "[2001:db8::2]:1", false}, {"2001:db8::/65", 0, "[2001:db8::7fff:0:0:1]:1", true},
		{"2001:db8::/65", 0, "[2001:db8::8000:0:0:1]:1", false}, {"2001:db8::/64", 0, "[2001:db8::1]:1", true},
	} {
		e := NewEndpoint(netip.MustParsePrefix(c.prefix), c.port)
		if got := e.match(socketOf(c.socket)); got != c.match {
			t.Errorf("%s, port %d, and %s: %v", c.prefix, c.port, c.socket, got)
		}
	}
	all := NewEndpoint(netip.Prefix{}, 0)
	if !all.match(socketOf("198.51.100.7:1")) || !all.match(socketOf("[2001:db8::1]:1")) {
		t.Error("the zero Endpoint does not select all")
	}
}

// TestMatchGroup: for each kind of filter, MatchGroup sets the bits of the flows that MatchFlow
// matches.
func TestMatchGroup(t *testing.T) {
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 1024, IPv6Flows: 1024,
		Timeouts: flowtable.DefaultTimeouts()})
	if err != nil {
		t.Fatal(err)
	}
	h, err := table.Register()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	h.Enter(flowtable.Time(time.Hour))
	defer h.Leave()
	var flows []*flowtable.Flow
	var group []flowtable.Search
	random := rand.New(rand.NewPCG(5, 6))
	for i := range 16 {
		client, frontend, backend, source := "198.51.100.", "203.0.113.", "10.0.1.", "10.0.9.1"
		if i%3 == 0 {
			client, frontend, backend, source = "2001:db8:c::", "2001:db8:f::", "2001:db8:1::", "2001:db8:9::1"
		}
		addr := func(prefix string) header.Addr {
			return header.AddrFrom(netip.MustParseAddr(prefix + string(rune('1'+random.IntN(3)))))
		}
		ref, status := h.Create(flowtable.Time(time.Hour), &flowtable.NewFlow{
			Client: header.Tuple{Src: addr(client), Dst: addr(frontend), SrcPort: uint16(1000 + i), DstPort: 80,
				Proto: header.ProtoUDP, V6: i%3 == 0},
			Backend: addr(backend), BackendPort: uint16(8080 + i%2),
			Source: header.AddrFrom(netip.MustParseAddr(source)),
			Ports:  flowtable.Ports{First: 2000, Count: 1000, Stride: 1}, Service: uint32(1 + i%4), BackendRef: 1,
		})
		if status != flowtable.Created {
			t.Fatal(status)
		}
		flows = append(flows, h.Flow(ref))
		s := flowtable.Search{}
		if i%3 == 0 {
			s.Family = header.PlainIPv6
		}
		group = append(group, s)
	}
	endpoint := func(prefix string, port uint16) Endpoint { return NewEndpoint(netip.MustParsePrefix(prefix), port) }
	for name, f := range map[string]Filter{
		"all": {}, "client": {Client: endpoint("198.51.100.2/32", 0)},
		"client's port": {Client: endpoint("198.51.100.0/24", 1001)},
		"IPv6 client":   {Client: endpoint("2001:db8:c::2/128", 0)}, "backend": {Backend: endpoint("10.0.1.2/31", 0)},
		"backend's port": {Backend: endpoint("10.0.1.0/24", 8081)},
		"IPv6 backend":   {Backend: endpoint("2001:db8:1::/64", 0)},
		"frontend":       {Frontend: endpoint("203.0.113.1/32", 80)}, "service": {ByService: true},
		"client and service":   {Client: endpoint("198.51.100.0/24", 0), ByService: true},
		"client and backend":   {Client: endpoint("198.51.100.0/30", 0), Backend: endpoint("10.0.1.2/32", 0)},
		"families that differ": {Client: endpoint("198.51.100.0/24", 0), Backend: endpoint("2001:db8::/32", 0)},
	} {
		tap := NewTap(f, 100, 0, 1, 1<<12)
		tap.SetServices(NewServices([]uint32{2, 3}))
		want, any := uint32(0), false
		for i, flow := range flows {
			if tap.MatchFlow(flow, group[i].Family == header.PlainIPv6) {
				want |= 1 << i
			}
			any = any || f != (Filter{})
		}
		if got := tap.MatchGroup(flows, group); got != want || any && want == 1<<16-1 ||
			want == 0 && name != "families that differ" {
			t.Errorf("%s: %016b, want %016b", name, got, want)
		}
	}
}

func TestServices(t *testing.T) {
	s := NewServices([]uint32{1, 64, 300})
	for id := range uint32(400) {
		if want := id == 1 || id == 64 || id == 300; s.has(id) != want {
			t.Errorf("%d: %v", id, !want)
		}
	}
	if s.Len() != 3 || (*Services)(nil).has(1) {
		t.Error("a set of three, and one that is not set yet")
	}
}
