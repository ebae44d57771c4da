package flowtable

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// testSeed is the one seed of all random tests; set SLUICE_SEED to repeat a run.
func testSeed(t testing.TB) uint64 {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("SLUICE_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 0, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("SLUICE_SEED=%d", seed)
	return seed
}

const second = Time(time.Second)

// bootTime is when the tests' virtual clocks begin: not zero, and not a round number of ticks.
const bootTime = 12345*second + 67891

func testTable(t testing.TB, flows4, flows6 uint32) (*Table, *Handle) {
	t.Helper()
	return testTableOf(t, Config{IPv4Flows: flows4, IPv6Flows: flows6, Timeouts: DefaultTimeouts()})
}

func testTableOf(t testing.TB, c Config) (*Table, *Handle) {
	t.Helper()
	tb, err := NewHeap(c)
	if err != nil {
		t.Fatal(err)
	}
	h, err := tb.Register()
	if err != nil {
		t.Fatal(err)
	}
	h.Enter(bootTime)
	return tb, h
}

func validate(t testing.TB, tb *Table) {
	t.Helper()
	if err := tb.Validate(); err != nil {
		t.Fatal(err)
	}
}

// addrN returns the n-th address of a test network.
func addrN(v6 bool, net byte, n uint32) header.Addr {
	if !v6 {
		return header.AddrFrom4([4]byte{net, byte(n >> 16), byte(n >> 8), byte(n)})
	}
	a := header.Addr{0x20, 0x01, 0x0d, 0xb8, net}
	binary.BigEndian.PutUint32(a[12:], n)
	return a
}

// newFlow is the n-th client's flow to one frontend and one backend, with a port
// out of 64,512.
func newFlow(proto uint8, v6 bool, n uint32) NewFlow {
	f := NewFlow{
		Client: header.Tuple{
			Src: addrN(v6, 10, n>>12), SrcPort: 1024 + uint16(n&0xfff),
			Dst: addrN(v6, 192, 1), DstPort: 443, Proto: proto, V6: v6,
		},
		Backend: addrN(v6, 11, n%251), BackendPort: 8443,
		Source: addrN(v6, 172, 1), Service: 7, BackendRef: n,
		Ports: Ports{First: 1024, Count: 64512, Start: uint16(n * 40503), Stride: 257},
	}
	if proto == header.ProtoICMP || proto == header.ProtoICMPv6 {
		f.Client.DstPort = f.Client.SrcPort
	}
	return f
}

func (h *Handle) mustCreate(t testing.TB, now Time, n NewFlow) Ref {
	t.Helper()
	r, s := h.Create(now, &n)
	if s != Created {
		t.Fatalf("Create %v: %v", n.Client, s)
	}
	return r
}

// reply returns the tuple that a backend's packets of this flow have.
func (h *Handle) reply(r Ref) header.Tuple {
	var out header.Tuple
	h.Outgoing(r, ClientSide, &out)
	return out.Reverse()
}

// lookup computes the hash of a tuple and finds its flow.
func (h *Handle) lookup(t *header.Tuple, now Time) (Ref, Side) {
	return h.Lookup(h.Hash(t), t, now)
}

// The backend's initial sequence number in segments of seg, and flags with a special meaning for
// seg: the segment has data, acknowledges a guessed number, or is of a later handshake with another
// number.
const (
	testISN = 4_294_967_295 // its SYN-ACK is acknowledged by 0
	tcpPSH  = header.TCPPSH
	tcpURG  = header.TCPURG
	tcpECE  = header.TCPECE
)

// seg returns a segment of a connection on which neither end has sent data, with the backend's
// sequence number, or the client's acknowledgment number.
func seg(from Side, flags uint8) Segment {
	s := Segment{Flags: flags, Data: flags&tcpPSH != 0}
	switch {
	case from == ClientSide && flags&tcpURG != 0:
		s.Ack = 12345
	case from == ClientSide:
		s.Ack = (testISN + 1) & 0xffffffff
	case flags&header.TCPSYN != 0:
		s.Seq = testISN
	default:
		s.Seq = (testISN + 1) & 0xffffffff
	}
	if flags&tcpECE != 0 {
		s.Seq, s.Ack = s.Seq+1000, s.Ack+1000
	}
	return s
}

// establish brings a TCP flow through the handshake.
func (h *Handle) establish(r Ref, now Time) {
	h.Observe(r, ClientSide, seg(ClientSide, header.TCPSYN), now)
	h.Observe(r, ReplySide, seg(ReplySide, header.TCPSYN|header.TCPACK), now)
	h.Observe(r, ClientSide, seg(ClientSide, header.TCPACK), now)
	h.Observe(r, ReplySide, seg(ReplySide, header.TCPACK), now)
}

func TestCreateLookupDelete(t *testing.T) {
	for _, c := range []struct {
		name  string
		proto uint8
		v6    bool
	}{
		{"TCP over IPv4", header.ProtoTCP, false},
		{"UDP over IPv4", header.ProtoUDP, false},
		{"SCTP over IPv4", header.ProtoSCTP, false},
		{"ICMP", header.ProtoICMP, false},
		{"TCP over IPv6", header.ProtoTCP, true},
		{"UDP over IPv6", header.ProtoUDP, true},
		{"ICMPv6", header.ProtoICMPv6, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			tb, h := testTable(t, 100, 100)
			n := newFlow(c.proto, c.v6, 1)
			r := h.mustCreate(t, bootTime, n)
			validate(t, tb)

			reply := h.reply(r)
			if reply.Src != n.Backend || reply.Dst != n.Source || reply.Proto != c.proto || reply.V6 != c.v6 {
				t.Errorf("reply tuple %+v", reply)
			}
			if got, side := h.lookup(&n.Client, bootTime); got != r || side != ClientSide {
				t.Errorf("client tuple: flow %d side %d, want %d side %d", got, side, r, ClientSide)
			}
			if got, side := h.lookup(&reply, bootTime); got != r || side != ReplySide {
				t.Errorf("reply tuple: flow %d side %d, want %d side %d", got, side, r, ReplySide)
			}
			var out header.Tuple
			if h.Outgoing(r, ReplySide, &out); out != n.Client.Reverse() {
				t.Errorf("a reply leaves as %+v, want %+v", out, n.Client.Reverse())
			}
			toBackend := reply.Reverse()
			f := h.Flow(r)
			if got, want := f.Delta(ClientSide), header.DeltaOf(&n.Client, &toBackend); got != want {
				t.Errorf("delta to the backend %v, want %v", got, want)
			}
			if f.Service() != 7 || f.BackendRef() != 1 || f.Proto() != c.proto ||
				f.Binding() != 0 {
				t.Errorf("flow has service %d, backend %d, protocol %d, binding %d", f.Service(),
					f.BackendRef(), f.Proto(), f.Binding())
			}
			h.Bind(r, 9, 8, 6, 5, 4)
			binding, b, cl := f.Bound()
			if binding != 9 || f.Binding() != 9 || f.Service() != 8 || f.BackendRef() != 6 || b != 5 || cl != 4 {
				t.Error("Bind did not keep what it was given")
			}
			if again, s := h.Create(bootTime, &n); again != r || s != Exists {
				t.Errorf("Create again: %d %v", again, s)
			}

			h.Delete(r)
			if got, _ := h.lookup(&n.Client, bootTime); got != 0 {
				t.Error("client tuple found after Delete")
			}
			if got, _ := h.lookup(&reply, bootTime); got != 0 {
				t.Error("reply tuple found after Delete")
			}
			h.Delete(r) // no effect
			validate(t, tb)
		})
	}
}

// A tuple is matched whole: a neighbour in any one field is another tuple.
func TestLookupMatchesWholeTuple(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		_, h := testTable(t, 100, 100)
		n := newFlow(header.ProtoUDP, v6, 1)
		h.mustCreate(t, bootTime, n)
		hash := h.Hash(&n.Client)
		for name, edit := range map[string]func(*header.Tuple){
			"source address":      func(t *header.Tuple) { t.Src[15] ^= 1 },
			"destination address": func(t *header.Tuple) { t.Dst[13] ^= 1 },
			"source port":         func(t *header.Tuple) { t.SrcPort ^= 1 },
			"destination port":    func(t *header.Tuple) { t.DstPort ^= 0x8000 },
			"protocol":            func(t *header.Tuple) { t.Proto = header.ProtoTCP },
			"direction":           func(t *header.Tuple) { *t = t.Reverse() },
		} {
			other := n.Client
			edit(&other)
			if h.Hash(&other) == hash {
				t.Errorf("v6 %v: another %s has the same hash", v6, name)
			}
			// With the flow's own hash, so that only the comparison distinguishes them.
			if r, _ := h.Lookup(hash, &other, bootTime); r != 0 {
				t.Errorf("v6 %v: found by another %s", v6, name)
			}
		}
	}
}

func TestConfigRefused(t *testing.T) {
	good := DefaultTimeouts()
	short := good
	short.Fin = time.Millisecond
	for _, c := range []struct {
		name string
		c    Config
	}{
		{"no flows", Config{Timeouts: good}},
		{"too many flows", Config{IPv4Flows: maxFlows + 1, Timeouts: good}},
		{"no timeouts", Config{IPv4Flows: 1}},
		{"a timeout below a second", Config{IPv4Flows: 1, Timeouts: short}},
	} {
		if _, err := Size(c.c); err == nil {
			t.Errorf("%s: accepted", c.name)
		}
	}
	c := Config{IPv4Flows: 10, Timeouts: good}
	size, err := Size(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(heapMemory(size)[:size-1], c); err == nil {
		t.Error("memory one byte too short: accepted")
	}
	if _, err := New(heapMemory(size + 8)[8:], c); err == nil {
		t.Error("memory not aligned: accepted")
	}
}

// The memory per flow that the package doc states.
func TestBytesPerFlow(t *testing.T) {
	for _, c := range []struct {
		name string
		c    Config
		most int64
	}{
		{"IPv4", Config{IPv4Flows: 1 << 20, Timeouts: DefaultTimeouts()}, 96},
		{"IPv6", Config{IPv6Flows: 1 << 20, Timeouts: DefaultTimeouts()}, 160},
		{"IPv4 beside IPv6", Config{IPv4Flows: 1 << 20, IPv6Flows: 1 << 20, Timeouts: DefaultTimeouts()}, 96 + 160},
	} {
		size, err := Size(c.c)
		if err != nil {
			t.Fatal(err)
		}
		layout, tb := size, &Table{halfOpen: int32((c.c.IPv4Flows + c.c.IPv6Flows) / 8)}
		tb.arenas[0].flows, tb.arenas[1].flows = c.c.IPv4Flows, c.c.IPv6Flows
		for f := range tb.arenas {
			for n := 0; n < numRings && tb.arenas[f].flows > 0; n++ {
				size += 4 * int64(tb.ringEntries(&tb.arenas[f], firstRing+Shed(n)))
			}
		}
		if got := float64(size) / (1 << 20); got > float64(c.most) {
			t.Errorf("%s: %.1f bytes per flow, want at most %d", c.name, got, c.most)
		} else {
			t.Logf("%s: %.1f bytes per flow, %.1f of them rings", c.name, got, float64(size-layout)/(1<<20))
		}
	}
}

func TestRegisterLimit(t *testing.T) {
	tb, first := testTable(t, 10, 0)
	for range MaxHandles - 1 {
		if _, err := tb.Register(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tb.Register(); err != ErrHandles {
		t.Fatalf("one handle too many: %v", err)
	}
	first.Close()
	if _, err := tb.Register(); err != nil {
		t.Fatalf("after a Close: %v", err)
	}
}

// The maximum number of handles keep free records for themselves, and any one of them can still
// fill a small table.
func TestHandlesKeepFewRecords(t *testing.T) {
	if MaxHandles < 256+4 {
		t.Errorf("%d handles: 256 workers and some readers want one each", MaxHandles)
	}
	const flows = 1000
	tb, first := testTable(t, flows, 0)
	first.Leave()
	handles := []*Handle{first}
	for range MaxHandles - 1 {
		h, err := tb.Register()
		if err != nil {
			t.Fatal(err)
		}
		handles = append(handles, h)
	}
	use := func(h *Handle, n uint32) {
		t.Helper()
		h.Enter(bootTime)
		refs := make([]Ref, n)
		for i := range n {
			refs[i] = h.mustCreate(t, bootTime, newFlow(header.ProtoICMP, false, i))
		}
		for _, r := range refs {
			h.Delete(r)
		}
		for range n/maxReclaim + 2 {
			h.Enter(bootTime)
		}
		h.Leave()
	}
	for _, h := range handles {
		use(h, 2*magazineSize+freshSize+1)
	}
	use(handles[len(handles)/2], flows)
	validate(t, tb)
}

// A closed handle gives its records to the others: a table can be filled, emptied and filled again
// by handles that are registered and closed.
func TestClosedHandlesReturnRecords(t *testing.T) {
	const flows = 2000
	tb, h := testTable(t, flows, 0)
	h.Close()
	for round := range 10 {
		h, err := tb.Register()
		if err != nil {
			t.Fatal(err)
		}
		now := bootTime + Time(round)*second
		h.Enter(now)
		var refs []Ref
		for n := range uint32(flows) {
			refs = append(refs, h.mustCreate(t, now, newFlow(header.ProtoUDP, false, n)))
		}
		for _, r := range refs {
			h.Delete(r)
		}
		validate(t, tb)
		h.Close()
		validate(t, tb)
		// Another handle enters often enough to adopt the records left in limbo.
		other, err := tb.Register()
		if err != nil {
			t.Fatal(err)
		}
		for range 2 * flows / maxReclaim {
			other.Enter(now)
		}
		other.Close()
		validate(t, tb)
	}
}

// A record is not used again while any online handle may hold a ref to it.
func TestReuseWaitsForEveryHandle(t *testing.T) {
	tb, h := testTable(t, 2000, 0)
	reader, err := tb.Register()
	if err != nil {
		t.Fatal(err)
	}
	n := newFlow(header.ProtoUDP, false, 1)
	old := h.mustCreate(t, bootTime, n)
	reader.Enter(bootTime)
	if got, _ := reader.lookup(&n.Client, bootTime); got != old {
		t.Fatal("reader does not see the flow")
	}
	h.Delete(old)
	h.Leave() // gives the record to the next handle that enters: the same one
	h.Enter(bootTime)
	// reused makes flows, ends them, and reports whether one got the old record.
	reused := func(flows uint32) (found bool) {
		var refs []Ref
		for i := range flows {
			if i%64 == 0 {
				h.Enter(bootTime)
			}
			refs = append(refs, h.mustCreate(t, bootTime, newFlow(header.ProtoUDP, false, 100+i)))
			found = found || refs[i] == old
		}
		for _, r := range refs {
			h.Delete(r)
		}
		for range 2 * flows / maxReclaim {
			h.Enter(bootTime)
		}
		return found
	}
	if reused(1000) {
		t.Fatal("record used again while a reader holds it")
	}
	if reply := reader.reply(old); reply.Dst != n.Source {
		t.Fatal("the record changed under the reader")
	}
	reader.Leave()
	if !reused(2000) {
		t.Fatal("record never used again after the reader left")
	}
	validate(t, tb)
}

// If more batches wait than limbo has places for, the last ones wait together for the youngest.
func TestLimboOverflows(t *testing.T) {
	tb, h := testTable(t, 3000, 0)
	reader, err := tb.Register()
	if err != nil {
		t.Fatal(err)
	}
	n := newFlow(header.ProtoUDP, false, 1)
	held := h.mustCreate(t, bootTime, n)
	var others []Ref
	for i := range uint32(2000) {
		others = append(others, h.mustCreate(t, bootTime, newFlow(header.ProtoUDP, false, 100+i)))
	}
	reader.Enter(bootTime)
	for i, r := range others {
		h.Delete(r)
		if i%100 == 99 {
			h.Enter(bootTime)
		}
	}
	reader.Enter(bootTime) // these batches are free for this handle, but it gets another ref
	if r, _ := reader.lookup(&n.Client, bootTime); r != held {
		t.Fatal("reader does not see the flow")
	}
	h.Delete(held)
	for range 20 {
		h.Enter(bootTime)
	}
	for i := range uint32(3000) {
		if h.mustCreate(t, bootTime, newFlow(header.ProtoUDP, false, 5000+i)) == held {
			t.Fatal("record used again while a reader holds it")
		}
	}
	validate(t, tb)
}

// A pending flow that claimed a slot may have been seen, and waits in limbo.
func TestAbortedPending(t *testing.T) {
	for _, exposed := range []bool{false, true} {
		tb, h := testTable(t, 10, 0)
		a := &tb.arenas[0]
		i := h.local[0].get(tb, a)
		a.flow(i).meta.Store(uint64(conn.MakeMeta(UDPNew, header.ProtoUDP, 0) | conn.MetaPending))
		h.exposed = exposed
		h.abort(a, i)
		if inLimbo := h.limbo.open.n == 1; inLimbo != exposed {
			t.Errorf("exposed %v: in limbo %v", exposed, inLimbo)
		}
		validate(t, tb)
	}
}

func TestHashSpreads(t *testing.T) {
	_, h := testTable(t, 1<<16, 1<<16)
	rnd := rand.New(rand.NewPCG(testSeed(t), 0))
	for _, v6 := range []bool{false, true} {
		a := h.arena(v6)
		load := make([]int, a.homes)
		base := rnd.Uint32()
		for n := range uint32(5 * a.homes) {
			f := newFlow(header.ProtoTCP, v6, base+n)
			load[a.home(h.Hash(&f.Client))]++
		}
		// Five on average: by the Poisson distribution one bucket in 10^10 has more than 25.
		for b, n := range load {
			if n > 25 {
				t.Fatalf("v6 %v: %d of %d sequential tuples in bucket %d", v6, n, 5*a.homes, b)
			}
		}
	}
}
