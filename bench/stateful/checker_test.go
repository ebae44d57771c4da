package stateful

import (
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/bench/framing"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/memlink"
)

// TestCheckerFindsWrongServer: the client detects another server's number in some tags, over TCP
// and UDP, and reports the first violations in detail.
func TestCheckerFindsWrongServer(t *testing.T) {
	talk := Template{Name: "talk", Protocol: ProtocolUDP, Port: 90, Share: 1, Steps: []Step{
		{From: Client, Size: 20}, {From: Server, Size: 20}, {From: Client, Size: 20, After: 50 * time.Millisecond},
		{From: Server, Size: 20},
	}}
	tcp := talk
	tcp.Name, tcp.Protocol = "talk over tcp", ProtocolTCP
	for _, template := range []Template{talk, tcp} {
		t.Run(template.Name, func(t *testing.T) {
			r, err := newPair(smallProfile(t, template))
			if err != nil {
				t.Fatal(err)
			}
			answers := 0
			r.fault = func(to *memlink.Link, frame []byte) {
				if to == r.clientLink && plant(r.client, frame) {
					answers++
				}
				to.Inject(frame)
			}
			play(t, r, 100, 20*time.Second)
			c := r.client.stats.Total()
			if answers == 0 || c.Violations != uint64(answers) || c.Moved != 0 || c.Completed != c.Opened {
				t.Errorf("%d planted, %+v", answers, c)
			}
			v := r.client.stats.Violations
			if len(v) != keptViolations || v[0].First == v[0].Then || !v[0].Client.IsValid() ||
				v[0].Seen <= v[0].Opened {
				t.Errorf("%d remembered, the first %+v", len(v), v[0])
			}
			if text := v[0].String(); !strings.Contains(text, v[0].Then.String()) {
				t.Error(text)
			}
		})
	}
}

// plant changes the server in the tag of the second answer of server 2.
func plant(client *Engine, frame []byte) bool {
	var p packet
	if [2]byte(frame[12:]) != [2]byte(client.ethernet[12:]) || !client.parse(&p, frame) {
		return false
	}
	tag, ok := ReadTag(p.payload)
	if !ok || tag.Step != 3 || tag.Server != 2 {
		return false
	}
	tag.Server = 3
	tag.Put(p.payload)
	at := len(frame) - len(p.payload)
	if p.key.protocol == ProtocolTCP {
		at -= header.TCPBytes
	} else {
		at -= header.UDPBytes
	}
	framing.Seal(frame[at:], client.addressesOf(frame), uint8(p.key.protocol))
	return true
}

// TestServerRemovedDuringExchange: over UDP, meeting two servers is no violation if the first was
// removed after the exchange began; it is one if the removal came before.
func TestServerRemovedDuringExchange(t *testing.T) {
	for _, tc := range []struct {
		name      string
		protocol  Protocol
		removed   uint64
		violation bool
	}{
		{"removed meanwhile", ProtocolUDP, 3_000_000_000, false},
		{"removed before", ProtocolUDP, 1_500_000_000, true},
		{"never removed", ProtocolUDP, 0, true},
		{"TCP", ProtocolTCP, 3_000_000_000, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := newPair(smallProfile(t, query()))
			if err != nil {
				t.Fatal(err)
			}
			e := r.client
			e.c.Removed = make([]atomic.Uint64, 4)
			e.c.Removed[0].Store(tc.removed)
			e.setClock(1_000_000_000)
			e.setClock(2_000_000_000)
			c := conn{opened: e.us, protocol: tc.protocol}
			e.setClock(4_000_000_000)
			e.met(&c, 1, 7)
			e.met(&c, 2, 7)
			s := e.stats.Total()
			if (s.Violations == 1) != tc.violation || s.Violations+s.Moved != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestCheckerFindsMovedExchange: the client detects a translator that moves an exchange to another
// server in its middle, although that server has not seen the beginning.
func TestCheckerFindsMovedExchange(t *testing.T) {
	r, err := newPair(smallProfile(t, burst()))
	if err != nil {
		t.Fatal(err)
	}
	const second, third = 2, 3 // last bytes of servers' addresses
	type client struct {
		address byte
		port    uint16
	}
	moved := map[client]bool{}
	r.fault = func(to *memlink.Link, frame []byte) {
		from, side, at := r.server, &frame[header.EthernetBytes+19], 0 // the destination's last byte
		if to == r.clientLink {
			from, side = r.client, &frame[header.EthernetBytes+15]
		}
		var p packet
		if [2]byte(frame[12:]) == [2]byte(from.ethernet[12:]) && from.parse(&p, frame) {
			tag, _ := ReadTag(p.payload)
			toThird := to == r.serverLink && *side == second && tag.Step == 3
			back := to == r.clientLink && *side == third &&
				moved[client{frame[header.EthernetBytes+19], p.key.localPort}]
			if toThird {
				moved[client{frame[header.EthernetBytes+15], p.key.peerPort}] = true
			}
			if toThird || back {
				*side ^= second ^ third
				at = header.EthernetBytes + header.IPv4Bytes
				framing.IPv4(frame[header.EthernetBytes:], header.ProtoUDP, frame[header.EthernetBytes+
					12:header.EthernetBytes+16], frame[header.EthernetBytes+16:at], len(frame)-at)
				framing.Seal(frame[at:], from.addressesOf(frame), header.ProtoUDP)
			}
		}
		to.Inject(frame)
	}
	play(t, r, 40, 20*time.Second)
	c := r.client.stats.Total()
	if len(moved) != 10 || c.Violations != uint64(len(moved)) || c.Completed != c.Opened {
		t.Errorf("%d of %d exchanges were moved, %+v", len(moved), c.Opened, c)
	}
}

// TestBroken: the conditions that make a run fail.
func TestBroken(t *testing.T) {
	for _, tc := range []struct {
		name           string
		client, server Counts
		bad            string
	}{
		{"good", Counts{Completed: 9}, Counts{}, ""},
		{"timeouts are the wire's", Counts{Completed: 9, Failed: [failures]uint64{Timeout: 3}}, Counts{}, ""},
		{"violation", Counts{Completed: 9, Violations: 1}, Counts{}, "met two servers"},
		{"bytes at the client", Counts{Completed: 9, Failed: [failures]uint64{Corrupt: 1}}, Counts{}, "other bytes"},
		{"bytes at the server", Counts{Completed: 9}, Counts{Failed: [failures]uint64{Corrupt: 1}}, "other bytes"},
		{"reset by a stranger", Counts{Completed: 9, Failed: [failures]uint64{Reset: 2}},
			Counts{Failed: [failures]uint64{Timeout: 1}}, "were reset"},
		{"reset by a server that gave up", Counts{Completed: 9, Failed: [failures]uint64{Reset: 1}},
			Counts{Failed: [failures]uint64{Timeout: 1}}, ""},
		{"nothing", Counts{}, Counts{}, "no connection"},
	} {
		r := Result{Client: Stats{Templates: []Counts{tc.client}}, Server: Stats{Templates: []Counts{tc.server}}}
		if err := r.Broken(); (err == nil) != (tc.bad == "") || err != nil && !strings.Contains(err.Error(), tc.bad) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.bad)
		}
	}
}

// TestRetupled: answers are counted if their server sees another client address.
func TestRetupled(t *testing.T) {
	r, err := newPair(smallProfile(t, query()))
	if err != nil {
		t.Fatal(err)
	}
	var c conn
	r.client.met(&c, 1, peerHash(wireAddress(netip.MustParseAddr("10.0.0.1")), 5))
	r.client.met(&c, 1, peerHash(wireAddress(netip.MustParseAddr("10.0.0.1")), 6))
	if s := r.client.stats.Total(); s.Retupled != 1 || s.Violations != 0 {
		t.Errorf("%+v", s)
	}
}

// TestNoAllocation: neither packets nor connections allocate.
func TestNoAllocation(t *testing.T) {
	p := smallProfile(t, page(), query(), burst())
	p.CPS = 0
	r, err := newPair(p)
	if err != nil {
		t.Fatal(err)
	}
	now := uint64(1_000_000_000)
	step := func() {
		for range 100 {
			now += 100_000
			r.step(now)
		}
	}
	for range 20 {
		step()
	}
	before := r.client.stats.Total()
	if n := testing.AllocsPerRun(20, step); n != 0 {
		t.Errorf("%v allocations in 100 steps", n)
	}
	after := r.client.stats.Total()
	if after.Completed-before.Completed < 1000 {
		t.Errorf("only %d connections", after.Completed-before.Completed)
	}
}

// TestTableAgainstMap: the table finds the same connections as a map, over random insertions and
// deletions at a load with long runs of used slots.
func TestTableAgainstMap(t *testing.T) {
	const n = 500
	conns := make([]conn, n+1)
	tab := newTable(n)
	present := map[uint32]uint32{} // number to hash
	x := uint32(1)
	for range 200_000 {
		x = x*1664525 + 1013904223
		i := x>>16%n + 1
		if hash, ok := present[i]; ok {
			tab.remove(hash, i)
			delete(present, i)
		} else {
			conns[i].localPort = uint16(i)
			hash := (x>>8&0x3f)<<1 | 1 // few home slots: long runs
			tab.insert(hash, i)
			present[i] = hash
		}
		if x>>20%64 == 0 {
			for j := uint32(1); j <= n; j++ {
				hash, ok := present[j]
				if !ok {
					hash = 1
				}
				got := tab.find(conns, &key{localPort: uint16(j)}, hash)
				if want := map[bool]uint32{true: j}[ok]; ok && got != want || !ok && got != 0 && present[got] != hash {
					t.Fatalf("connection %d: found %d, present %v", j, got, ok)
				}
			}
		}
	}
}

// TestWheel: timers expire in their millisecond, also if they were postponed, brought forward, or
// are more than one turn of the wheel away.
func TestWheel(t *testing.T) {
	conns := make([]conn, 6)
	w := newWheel(0)
	w.arm(conns, 1, 10)
	w.arm(conns, 2, 10)
	w.arm(conns, 2, 20_000) // postponed beyond a turn
	w.arm(conns, 3, 500)
	w.arm(conns, 3, 30) // brought forward
	w.arm(conns, 4, 40)
	w.unlink(conns, 4)
	w.arm(conns, 5, 60)
	conns[5].deadline = 0 // cancelled
	came := map[uint32]uint32{}
	for now := uint32(1); now <= 25_000; now++ {
		for i := w.pop(conns, now); i != 0; i = w.pop(conns, now) {
			came[i] = now
		}
	}
	if len(came) != 3 || came[1] != 10 || came[2] != 20_000 || came[3] != 30 {
		t.Errorf("came at %v", came)
	}
}
