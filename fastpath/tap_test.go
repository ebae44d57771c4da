package fastpath_test

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/capture"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/test/bed/garbage"
)

// seen is a packet at a point: link, point and bytes; of drops the reason too.
type seen string

// watch is a lab whose links note what passes them.
type watch struct {
	*lab
	mem     []byte
	wire    map[seen]int // what the links received and took
	taps    []*capture.Tap
	records map[seen]int // what the first tap has recorded
	list    []capture.Record
}

// watchedLink is a link of a watch.
type watchedLink struct {
	fastpath.Link
	w    *watch
	link int
}

func (l *watchedLink) note(p capture.Point, batch []fastpath.Desc) {
	if l.w.lab == nil {
		return // it is being made
	}
	g := l.w.workers[0]
	for _, d := range batch {
		b := make([]byte, g.config.Chains.Bytes(d))
		filled := 0
		for addr, more := d.Addr, true; more && d.Len == 0; addr, more = g.config.Chains.Next(addr) {
			n := g.config.Chains.First(fastpath.Desc{Addr: addr})
			filled += copy(b[filled:], l.w.mem[addr:addr+uint64(n)])
		}
		if d.Len != 0 {
			copy(b, l.w.mem[d.Addr:])
		}
		l.w.wire[at(l.link, p, b)]++
	}
}

func at(link int, p capture.Point, b []byte) seen { return seen(fmt.Sprintf("%d %d %x", link, p, b)) }

func (l *watchedLink) Receive(batch []fastpath.Desc) int {
	n := l.Link.Receive(batch)
	l.note(capture.In, batch[:n])
	return n
}

func (l *watchedLink) Transmit(batch []fastpath.Desc) int {
	n := l.Link.Transmit(batch)
	l.note(capture.Out, batch[:n])
	return n
}

func newWatch(t testing.TB, c labConfig) *watch {
	w := &watch{wire: map[seen]int{}, records: map[seen]int{}}
	c.tap = func(link fastpath.Link, mem []byte, host bool) fastpath.Link {
		w.mem = mem
		position := 0
		if host {
			position = 1
		}
		return &watchedLink{link, w, position}
	}
	w.lab = newLab(t, c)
	clear(w.wire)
	return w
}

// begin starts captures, and forgets what passed before.
func (w *watch) begin(taps ...*capture.Tap) {
	g := w.workers[0]
	w.taps = taps
	g.SetTaps(g.NewTaps(taps))
	clear(w.wire)
	clear(w.records)
	w.list = nil
}

// read reads the records of the first tap.
func (w *watch) read() {
	w.taps[0].Rings[0].Read(func(r *capture.Record, b []byte) bool {
		if r.Point != capture.Dropped {
			w.records[at(int(r.Link), r.Point, b)]++
		}
		w.list = append(w.list, *r)
		return true
	})
}

func newTap(f capture.Filter) *capture.Tap { return capture.NewTap(f, 1<<16, 0, 1, 1<<22) }

// sameAsWire compares the records with what passed the links.
func (w *watch) sameAsWire() {
	w.t.Helper()
	w.read()
	if maps.Equal(w.wire, w.records) {
		return
	}
	for p, n := range w.wire {
		if w.records[p] != n {
			w.t.Errorf("%d times on the wire, %d times recorded: %s", n, w.records[p], p)
		}
	}
	for p, n := range w.records {
		if w.wire[p] == 0 {
			w.t.Errorf("%d times recorded, never on the wire: %s", n, p)
		}
	}
	w.t.FailNow()
}

// dropsRecorded compares the recorded drops with the ledger, whose drops before are subtracted.
func (w *watch) dropsRecorded(before map[string]uint64) {
	w.t.Helper()
	ledger, recorded := w.drops(), map[string]uint64{}
	for r, n := range before {
		if ledger[r] -= n; ledger[r] == 0 {
			delete(ledger, r)
		}
	}
	for i := range w.list {
		if r := &w.list[i]; r.Point == capture.Dropped {
			recorded[r.Reason.String()]++
		}
	}
	if !maps.Equal(ledger, recorded) {
		w.t.Errorf("drops are %v, recorded %v", ledger, recorded)
	}
}

// TestCaptureIsTheWire: an unfiltered capture has each packet that the links received and took,
// byte by byte, and each drop, for packets of all classes of garbage among flows of all kinds,
// fragments, parked packets, packets without a next hop, split packets, and a transmit ring that is
// full.
func TestCaptureIsTheWire(t *testing.T) {
	w := newWatch(t, labConfig{flows: 1 << 12, frameSize: garbageFrame})
	g := w.workers[0]
	var flows []*garbage.Flow
	for i := range 4 {
		for _, k := range flowKinds[:4] {
			f := &garbage.Flow{Proto: k.proto, VIP: netip.MustParseAddrPort(k.vip),
				Client: netip.AddrPortFrom(netip.MustParseAddr(k.client), uint16(2000+i))}
			g.nic.Inject(handshake(k.proto, 0, f.Client.String(), f.VIP.String()))
			w.step(time.Microsecond)
			_, p := w.out(g.nic)
			f.SNAT, f.Server = ends(&p.Tuple)
			flows = append(flows, f)
		}
	}
	source := garbage.New(7, netip.MustParseAddr(vip4), netip.MustParseAddr(vip6), netip.MustParseAddr(emptyVIP),
		netip.MustParseAddr("10.0.9.1"))
	source.Aim(flows)
	before := w.drops()
	w.begin(newTap(capture.Filter{}))
	for batch := range 300 {
		for i := range 100 {
			f := source.Next()
			g.nic.Inject(f.Bytes)
			if i%3 == 0 { // many new flows, so that some are parked
				g.nic.Inject(headertest.UDP(join(client4, uint16(3000+batch*37+i)), join(vip4, 53), "x").Bytes())
			}
		}
		w.step(200 * time.Microsecond)
		if batch%8 == 7 { // otherwise the transmit ring fills
			g.nic.Loop()
			g.host.Loop()
		}
		w.read()
	}
	for range 40 { // what waits is sent or dropped
		w.step(100 * time.Millisecond)
		g.nic.Loop()
		g.host.Loop()
	}
	w.sameAsWire()
	w.dropsRecorded(before)
	ring := w.taps[0].Rings[0]
	if ring.Lost.Load() != 0 || ring.Over.Load() != 0 {
		t.Errorf("%d records lost, %d over the rate", ring.Lost.Load(), ring.Over.Load())
	}
	var points [3]int
	reasons := map[reason.Drop]bool{}
	for i := range w.list {
		points[w.list[i].Point]++
		reasons[w.list[i].Reason] = true
	}
	t.Logf("%d received, %d sent, %d dropped for %d reasons", points[0], points[1], points[2], len(reasons)-1)
	for _, r := range []reason.Drop{reason.TxRingFull, reason.FragmentTimeout, reason.NewFlowDisplaced} {
		if !reasons[r] {
			t.Errorf("no packet was dropped for %v", r)
		}
	}
}

// TestCaptureOfLongPackets: packets in several frames, and packets that are split, are recorded
// whole.
func TestCaptureOfLongPackets(t *testing.T) {
	w := newWatch(t, labConfig{long: true})
	w.mtu(9000, 9000)
	before := w.drops()
	w.begin(newTap(capture.Filter{}))
	g := w.workers[0]
	g.nic.Inject(headertest.UDP(join(client4, 5), join(vip4, 53), text(7000)).Bytes())
	w.step(time.Microsecond)
	w.mtu(1500, 1500)
	split := headertest.UDP(join(client4, 5), join(vip4, 53), text(5000))
	split.DF = false
	g.nic.Inject(split.Bytes())
	w.step(time.Microsecond)
	w.step(time.Microsecond)
	w.sameAsWire()
	w.dropsRecorded(before)
	made := 0
	for i := range w.list {
		if r := &w.list[i]; r.Verdict == capture.Generated {
			made++
			if !r.Flow.Known || r.Flow.Client.Addr() != addr(client4) {
				t.Errorf("a fragment has the flow %+v", r.Flow)
			}
		}
	}
	if made == 0 {
		t.Error("no fragment was recorded as made by the worker")
	}
}

// TestCaptureOfProxyHeaders: a segment with a PROXY header, which the worker makes, is recorded
// with its flow.
func TestCaptureOfProxyHeaders(t *testing.T) {
	w := newWatch(t, labConfig{edit: proxied})
	w.begin(newTap(capture.Filter{Client: capture.NewEndpoint(netip.MustParsePrefix(client4+"/32"), 0)}))
	w.proxyHandshake(t)
	data := headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.ACK)
	data.Payload, data.Seq, data.Ack = []byte("bytes"), headertest.ISN+1, headertest.ISN+1
	w.send(0, data)
	w.sameAsWire()
	made := 0
	for i := range w.list {
		if r := &w.list[i]; r.Verdict == capture.Generated && r.Point == capture.Out &&
			r.Flow.Client.Addr() == addr(client4) {
			made++
		}
	}
	if made != 1 || w.workers[0].stats.ProxyHeaders.Load() != 1 {
		t.Errorf("%d headers recorded, %d sent", made, w.workers[0].stats.ProxyHeaders.Load())
	}
}

// TestCaptureOfProxyDatagrams: a datagram that gets a PROXY header is recorded, and counted in its
// flow's traffic, as it arrived, also behind a longer packet of another client.
func TestCaptureOfProxyDatagrams(t *testing.T) {
	for _, e := range datagramEnds {
		table, _ := loggedTable(t)
		w := newWatch(t, labConfig{table: table, edit: proxiedDatagrams})
		w.begin(newTap(capture.Filter{}))
		long := netip.AddrPortFrom(netip.MustParseAddrPort(e.client).Addr(), 40001)
		want := map[uint16]uint64{}
		for _, p := range []*headertest.Packet{
			headertest.UDP(long.String(), e.vip, text(500)), headertest.UDP(e.client, e.vip, text(10)),
		} {
			w.send(0, p)
			want[p.SrcPort] = uint64(len(p.Bytes()))
		}
		w.sameAsWire()
		for i := range w.list {
			r := &w.list[i]
			bytes := uint32(want[r.Flow.Client.Port])
			if r.Point == capture.Out {
				bytes += uint32(e.bytes)
			}
			if r.Bytes != bytes {
				t.Errorf("%s: a datagram at point %d has %d bytes, want %d", e.vip, r.Point, r.Bytes, bytes)
			}
		}
		for _, f := range w.dump() {
			bytes := want[f.Client.SrcPort]
			if got := f.Traffic[flowtable.ClientSide]; !f.Metered || got.Bytes != bytes {
				t.Errorf("%s: traffic of port %d is %+v, want %d bytes", e.vip, f.Client.SrcPort, got, bytes)
			}
		}
	}
}

// loggedTable returns a flow table with a log, which counts the traffic of flows.
func loggedTable(t *testing.T) (*flowtable.Table, *flowtable.Log) {
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 256, IPv6Flows: 256,
		Timeouts: flowtable.DefaultTimeouts()})
	if err != nil {
		t.Fatal(err)
	}
	log, err := table.StartLog(1024, make([]byte, table.AccountBytes()), true)
	if err != nil {
		t.Fatal(err)
	}
	return table, log
}

// TestCaptureOfDirectReturn: packets of flows with direct return are recorded as they arrive and in
// their tunnel, also where the pipeline would forward them.
func TestCaptureOfDirectReturn(t *testing.T) {
	nodes := []string{node1}
	w := newWatch(t, labConfig{edit: direct(nodes, nodes), sources: true})
	w.begin(newTap(capture.Filter{Client: capture.NewEndpoint(netip.MustParsePrefix(client4+"/32"), 0)}))
	for i := range 40 {
		flags := uint8(headertest.ACK)
		if i == 0 {
			flags = headertest.SYN
		}
		w.toNode(headertest.TCP(join(client4, 40000), join(vip4, 80), flags))
	}
	w.sameAsWire()
	if len(w.list) != 80 {
		t.Errorf("%d records, want 80", len(w.list))
	}
}

// TestCaptureOfAnotherClient: with direct return, packets of clients that no capture selects take
// the fast path, in one batch with those of a client that one selects.
func TestCaptureOfAnotherClient(t *testing.T) {
	nodes := []string{node1}
	w := newWatch(t, labConfig{edit: direct(nodes, nodes), sources: true})
	g := w.workers[0]
	const other = "198.51.100.200"
	packet := func(client string, flags uint8) *headertest.Packet {
		return headertest.TCP(join(client, 40000), join(vip4, 80), flags)
	}
	for _, client := range []string{client4, other} {
		w.toNode(packet(client, headertest.SYN))
		w.toNode(packet(client, headertest.ACK))
	}
	w.begin(newTap(capture.Filter{Client: capture.NewEndpoint(netip.MustParsePrefix(client4+"/32"), 0)}))
	for _, test := range []struct {
		captured, others int
	}{{0, 30}, {1, 30}, {5, 20}} {
		g.Judged()
		for range test.captured {
			g.nic.Inject(packet(client4, headertest.ACK).Bytes())
		}
		for range test.others {
			g.nic.Inject(packet(other, headertest.ACK).Bytes())
		}
		w.step(time.Microsecond)
		if p := g.Judged(); p.L3 != 0 && p.Tuple.Src == addr(other) {
			t.Errorf("%d packets beside %d that are recorded: one took the slow path", test.others, test.captured)
		}
		for range test.captured + test.others {
			if _, ok := g.nic.Take(nil); !ok {
				t.Fatal("a packet is missing")
			}
		}
	}
	if w.read(); len(w.list) != 12 {
		t.Errorf("%d records, want 12", len(w.list))
	}
}

// TestCaptureFilters: a filter selects both directions of a flow, before and after translation, on
// the fast path and on the slow one.
func TestCaptureFilters(t *testing.T) {
	other := "198.51.100.8"
	prefix := func(s string) netip.Prefix { return netip.MustParsePrefix(s) }
	for name, f := range map[string]capture.Filter{
		"client":         {Client: capture.NewEndpoint(prefix(client4+"/32"), 0)},
		"client's port":  {Client: capture.NewEndpoint(prefix(client4+"/32"), 40000)},
		"frontend":       {Frontend: capture.NewEndpoint(prefix(vip4+"/32"), 80)},
		"backend":        {Backend: capture.NewEndpoint(prefix(backend4+"/31"), 8080)},
		"client network": {Client: capture.NewEndpoint(prefix("198.51.100.0/29"), 0)},
		"service":        {ByService: true},
		"all of them": {Client: capture.NewEndpoint(prefix(client4+"/32"), 0),
			Backend: capture.NewEndpoint(prefix(backend4+"/32"), 0), ByService: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatch(t, labConfig{})
			g := w.workers[0]
			tap := newTap(f)
			tap.SetServices(capture.NewServices([]uint32{1}))
			w.begin(nil, tap)
			pass := func(client, vip string, proto uint8) {
				w.send(0, packet(proto, client, vip, headertest.SYN))
				_, p := w.out(g.nic)
				src, dst := ends(&p.Tuple)
				w.send(0, packet(proto, dst.String(), src.String(), headertest.SYN|headertest.ACK))
				w.send(0, packet(proto, client, vip, headertest.ACK))
				for range 4 {
					w.send(0, packet(proto, dst.String(), src.String(), headertest.ACK))
				}
				for range 6 {
					w.out(g.nic)
				}
			}
			pass(join(client4, 40000), join(vip4, 80), header.ProtoTCP) // 7 packets, which match
			pass(join(other, 40000), join(vip4, 53), header.ProtoUDP)
			pass(join(client6, 40000), join(vip6, 80), header.ProtoTCP)
			w.taps[0] = tap
			w.read()
			var points [2][2]int // by direction and point
			for i := range w.list {
				r := &w.list[i]
				if !r.Flow.Known || r.Flow.Client.Addr() != addr(client4) || r.Flow.Frontend.Port != 80 ||
					r.Flow.Backend.Port != 8080 || r.Flow.Source.Addr() != addr(snat4) || r.Flow.Service != 1 {
					t.Errorf("recorded %+v", r)
				}
				direction := 0
				if r.Flow.Reply {
					direction = 1
				}
				points[direction][r.Point]++
			}
			if want := [2][2]int{{2, 2}, {5, 5}}; points != want {
				t.Errorf("recorded %v, want %v", points, want)
			}
		})
	}
}

// TestCaptureOfDrops: a capture of drops has only drops of its reasons, and with a filter only
// those of the flows that match.
func TestCaptureOfDrops(t *testing.T) {
	w := newWatch(t, labConfig{})
	w.begin(newTap(capture.Filter{Reasons: capture.Reasons(reason.NoFlow),
		Client: capture.NewEndpoint(netip.MustParsePrefix(client4+"/32"), 0)}))
	w.send(0, headertest.TCP(join(client4, 1), join(vip4, 80), headertest.ACK),
		headertest.TCP(join(client4, 1), join(emptyVIP, 80), headertest.SYN),
		headertest.TCP("198.51.100.8:1", join(vip4, 80), headertest.ACK),
		headertest.TCP(join(client4, 1), join(vip4, 80), headertest.SYN))
	w.read()
	if len(w.list) != 1 || w.list[0].Reason != reason.NoFlow || w.list[0].Point != capture.Dropped ||
		w.list[0].Flow.Service != 1 {
		t.Errorf("recorded %+v", w.list)
	}
}

// TestStalledReaderHarmsNothing: records for which there is no room are counted, and packets pass.
func TestStalledReaderHarmsNothing(t *testing.T) {
	w := newWatch(t, labConfig{})
	g := w.workers[0]
	w.open(join(client4, 1), join(vip4, 80))
	before := w.drops()
	tap := capture.NewTap(capture.Filter{}, 200, 0, 1, 1<<12)
	w.begin(tap)
	frame := headertest.TCP(join(client4, 1), join(vip4, 80), headertest.ACK).Bytes()
	const packets = 1000
	for range packets {
		g.nic.Inject(frame)
		w.step(time.Microsecond)
		if g.nic.Loop() != 1 {
			t.Fatal("a packet was not sent")
		}
	}
	w.read()
	if n := uint64(len(w.list)) + tap.Rings[0].Lost.Load(); n != 2*packets || len(w.list) == 0 {
		t.Errorf("%d records and losses, want %d", n, 2*packets)
	}
	w.dropsRecorded(before)
}

// TestCaptureRate: no second has more records than the rate allows, a packet is recorded where it
// arrives and where it leaves or not at all, and the others are counted.
func TestCaptureRate(t *testing.T) {
	w := newWatch(t, labConfig{})
	g := w.workers[0]
	w.open(join(client4, 1), join(vip4, 80))
	const rate, packets = 1000, 6000
	tap := capture.NewTap(capture.Filter{}, 1<<16, rate, 1, 1<<22)
	w.begin(tap)
	frame := headertest.TCP(join(client4, 1), join(vip4, 80), headertest.ACK).Bytes()
	for range packets { // in two seconds
		g.nic.Inject(frame)
		w.step(time.Second / 3000)
		g.nic.Loop()
	}
	w.read()
	var points [2]int
	var times []uint64
	for i := range w.list {
		points[w.list[i].Point]++
		times = append(times, w.list[i].At)
	}
	if points[0] != points[1] || points[0] < rate*8/10 {
		t.Errorf("%d recorded where they arrived, %d where they left", points[0], points[1])
	}
	for i := range times {
		if i+rate < len(times) && times[i+rate]-times[i] < uint64(time.Second)-1 {
			t.Fatalf("more than %d records within %v", rate, time.Duration(times[i+rate]-times[i]))
		}
	}
	if n := len(w.list) + int(tap.Rings[0].Over.Load()); n != 2*packets {
		t.Errorf("%d records and packets over the rate, want %d", n, 2*packets)
	}
}

// TestCaptureAllocatesNothing: nor do drops, flows that are opened, or a ring that is full.
func TestCaptureAllocatesNothing(t *testing.T) {
	l := newLab(t, labConfig{})
	l.validate = false
	g := l.workers[0]
	l.open(join(client4, 1), join(vip4, 80))
	g.SetTaps(g.NewTaps([]*capture.Tap{
		newTap(capture.Filter{}), newTap(capture.Filter{Reasons: ^uint64(0)}),
		newTap(capture.Filter{Client: capture.NewEndpoint(netip.MustParsePrefix(client4+"/32"), 0)}),
	}))
	known := headertest.TCP(join(client4, 1), join(vip4, 80), headertest.ACK).Bytes()
	drop := headertest.TCP(join(client4, 2), join(vip4, 80), headertest.ACK).Bytes()
	if n := testing.AllocsPerRun(1000, func() {
		g.nic.Inject(known)
		g.nic.Inject(drop)
		l.now += uint64(10 * time.Microsecond)
		g.Step(l.now)
		g.nic.Loop()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestCapturesComeAndGo: a capture that ends leaves the others as they are, and a packet that waits
// meanwhile is recorded once by each that follows it.
func TestCapturesComeAndGo(t *testing.T) {
	w := newWatch(t, labConfig{})
	g := w.workers[0]
	first, second := newTap(capture.Filter{}), newTap(capture.Filter{})
	parts := headertest.Split(headertest.UDP(join(client4, 5), join(vip4, 53), text(1400)).Bytes(), 800, 9)
	w.begin(first, second)
	g.nic.Inject(parts[1]) // waits for the first fragment
	w.step(time.Millisecond)
	g.SetTaps(g.NewTaps([]*capture.Tap{first, nil}))
	g.nic.Inject(parts[0])
	w.step(2 * time.Millisecond)
	w.sameAsWire()
	if n := len(w.list); n != 4 {
		t.Errorf("%d records, want 4", n)
	}
	w.taps, w.list = []*capture.Tap{second}, nil
	w.read()
	if len(w.list) != 0 {
		t.Errorf("the capture that ended has %+v", w.list)
	}
	g.SetTaps(nil)
	frame := bytes.Clone(parts[0])
	g.nic.Inject(frame)
	w.step(time.Millisecond)
	w.taps = []*capture.Tap{first}
	w.read()
	if len(w.list) != 0 {
		t.Errorf("recorded after the end: %+v", slices.Clone(w.list))
	}
}
