package fastpath_test

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/test/bed/size"
)

// A simulation of TCP: a thousand clients open connections to one backend through a worker with few
// source ports. Both ends are state machines of RFC 9293 with sequence numbers, so the oracle knows
// which segments an end accepts, and to which connection they belong.

const (
	simSecond = uint64(time.Second)
	simMilli  = uint64(time.Millisecond)
	// simWindow is the receive window of both ends.
	simWindow = 64240
	// simData is the length of a request and of an answer.
	simData = 8
	// timeWait is 2 MSL of Linux (TCP_TIMEWAIT_LEN).
	timeWait = 60 * simSecond
	// simTries is how often an end sends a segment before it gives up, after 31 s.
	simTries = 5
)

// simSegment is a segment, with the number of its sender's connection.
type simSegment struct {
	conn     int
	flags    uint8
	data     bool
	seq, ack uint32
}

// end returns the sequence number after the segment.
func (s *simSegment) end() uint32 {
	n := s.seq
	if s.flags&(headertest.SYN|headertest.FIN) != 0 {
		n++
	}
	if s.data {
		n += simData
	}
	return n
}

// simEnd is one end of a connection.
type simEnd struct {
	conn       int
	client     *simClient // nil: an end of the backend
	port       uint16     // of the backend's ends: the gateway's
	opening    bool       // SYN sent or received, and not acknowledged
	closed     bool
	next, una  uint32 // SND.NXT, SND.UNA
	rcv        uint32 // RCV.NXT
	unacked    []simSegment
	tries      int
	fin, saw   bool // FIN sent, FIN received
	first      bool // it sent its FIN before it received one
	waitsUntil uint64
}

// simClient is a connection and its client's end. The end is live until the client closes it or
// gives up.
type simClient struct {
	simEnd
	from     netip.AddrPort
	requests int
	leaves   simLeave
	silent   bool // the host has gone
	// proven is the source port with which the client's acknowledgement of the backend's SYN has
	// arrived; 0 before that.
	proven uint16
}

// simLeave is how a client ends a connection after its last answer.
type simLeave uint8

const (
	leavesByFIN simLeave = iota
	leavesByRST
	leavesSilently
	waitsForServer
)

// simServer is how the backend behaves.
type simServer struct {
	name string
	// delay returns the backend's time for an answer.
	delay func(rnd *rand.Rand, now uint64) uint64
	// closes: the backend closes after the first answer.
	closes bool
	// restarts: the backend loses its connections every 20 s.
	restarts bool
	// lost is the fraction of segments that is lost, and late the fraction that is repeated up to
	// 30 s later.
	lost, late float64
	// reuse: clients use a port again as soon as they have closed it.
	reuse bool
}

func promptly(rnd *rand.Rand, _ uint64) uint64 { return uint64(rnd.IntN(int(2 * simMilli))) }

var simServers = []simServer{
	{name: "prompt", delay: promptly},
	{name: "closes first", delay: promptly, closes: true},
	{name: "closes first, ports used again", delay: promptly, closes: true, reuse: true},
	{name: "pauses", late: 0.001, delay: func(rnd *rand.Rand, now uint64) uint64 {
		if at := now % (20 * simSecond); at < 5*simSecond {
			return 5*simSecond - at
		}
		return promptly(rnd, now)
	}},
	{name: "slow", delay: func(rnd *rand.Rand, _ uint64) uint64 { return uint64(rnd.IntN(int(4 * simSecond))) }},
	{name: "restarts", delay: promptly, restarts: true, reuse: true},
	{name: "lossy", lost: 0.03, late: 0.02, delay: promptly, reuse: true},
	{name: "lossy, closes first", lost: 0.03, late: 0.02, delay: promptly, closes: true, reuse: true},
}

// simEvent is the arrival of a segment at the gateway, or an action of an end.
type simEvent struct {
	at      uint64
	to      *simEnd // whose timer or application this is; nil: a segment
	request bool    // the application's, not the timer's
	tries   int     // of a timer: outdated if the end's differ
	una     uint32
	from    netip.AddrPort // of a segment of a client
	port    uint16         // of a segment of the backend: the gateway's
	segment simSegment
}

type simEvents []simEvent

func (e simEvents) Len() int           { return len(e) }
func (e simEvents) Less(i, j int) bool { return e[i].at < e[j].at }
func (e simEvents) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *simEvents) Push(x any)        { *e = append(*e, x.(simEvent)) }
func (e *simEvents) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

type simulation struct {
	*lab
	rnd     *rand.Rand
	server  simServer
	pending simEvents
	conns   []*simClient // by number
	sockets map[netip.AddrPort]*simClient
	backend map[uint16]*simEnd // by port of the gateway
	packet  headertest.Packet
	began   uint64 // start of the backend's process

	segments, opened, established, answered, refused int
	// strays counts segments that reached an end of another connection and were not accepted.
	strays int
	// accepted counts segments that an end of another connection accepted: data, FIN, or SYN-ACK.
	accepted int
	// broken counts live connections that a segment of another connection, or the gateway, ended.
	broken int
	// young counts handshakes that another connection ended and whose ACK the gateway had not
	// received: if all ports are taken, it evicts such flows after half a second (flowtable,
	// halfOpenGrace).
	young int
}

// isn returns an initial sequence number as in RFC 6528: a clock of 4 us, and a hash of the ends.
func (s *simulation) isn(of uint64) uint32 {
	h := of * 0x9e3779b97f4a7c15
	return uint32(h>>32) + uint32(s.now/4000)
}

// open opens a connection of a random client.
func (s *simulation) open() {
	const clients, ports = 1000, 6
	n := s.rnd.IntN(clients * ports)
	from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(n / ports >> 8), byte(n / ports)}),
		uint16(40000+n%ports))
	if old := s.sockets[from]; old != nil && !(s.server.reuse && old.waitsUntil > 0) {
		if !old.closed || old.waitsUntil > s.now {
			return // the port is in use
		}
	}
	c := &simClient{from: from, requests: 1 + s.rnd.IntN(3)}
	c.conn, c.client, c.opening = len(s.conns), c, true
	switch k := s.rnd.IntN(20); {
	case s.server.closes:
		c.leaves, c.requests = waitsForServer, 1
	case k == 0:
		c.leaves = leavesSilently
	case k < 4:
		c.leaves = leavesByRST
	}
	c.una = s.isn(uint64(n) + 1)
	if old := s.sockets[from]; old != nil && int32(c.una-old.next) <= 0 {
		c.una = old.next + 1
	}
	c.next = c.una
	s.conns = append(s.conns, c)
	s.sockets[from] = c
	s.opened++
	s.transmit(&c.simEnd, simSegment{flags: headertest.SYN})
}

// transmit sends a segment that takes sequence space, and repeats it until it is acknowledged.
func (s *simulation) transmit(e *simEnd, seg simSegment) {
	seg.conn, seg.seq = e.conn, e.next
	e.next = seg.end()
	e.unacked = append(e.unacked, seg)
	s.send1(e, seg)
	if len(e.unacked) == 1 {
		e.tries = 1
		s.arm(e)
	}
}

func (s *simulation) arm(e *simEnd) {
	heap.Push(&s.pending, simEvent{at: s.now + simSecond<<(e.tries-1), to: e, tries: e.tries, una: e.una})
}

// control sends a segment without sequence space.
func (s *simulation) control(e *simEnd, flags uint8) {
	s.send1(e, simSegment{conn: e.conn, flags: flags, seq: e.next})
}

// send1 sends a segment of an end to the gateway.
func (s *simulation) send1(e *simEnd, seg simSegment) {
	if seg.flags&headertest.ACK != 0 {
		seg.ack = e.rcv
	}
	ev := simEvent{segment: seg, port: e.port}
	if e.client != nil {
		ev.from = e.client.from
	}
	s.carry(ev)
}

// carry simulates the network, which may lose or repeat the segment.
func (s *simulation) carry(ev simEvent) {
	if s.rnd.Float64() < s.server.late {
		ev.at = s.now + uint64(s.rnd.IntN(int(30*simSecond)))
		heap.Push(&s.pending, ev)
	}
	if s.rnd.Float64() < s.server.lost {
		return
	}
	ev.at = s.now + 100_000 + uint64(s.rnd.IntN(100_000))
	heap.Push(&s.pending, ev)
}

// forward gives a segment to the worker, and the worker's packets to the ends.
func (s *simulation) forward(ev *simEvent) {
	s.segments++
	p := &s.packet
	*p = headertest.Packet{Proto: header.ProtoTCP, Flags: ev.segment.flags, Seq: ev.segment.seq, Ack: ev.segment.ack}
	if ev.from.IsValid() {
		p.Src, p.SrcPort, p.Dst, p.DstPort = ev.from.Addr(), ev.from.Port(), simVIP.Addr(), simVIP.Port()
	} else {
		p.Src, p.SrcPort, p.Dst, p.DstPort = simBackend.Addr(), simBackend.Port(), simSource, ev.port
	}
	if ev.segment.data {
		p.Payload = make([]byte, simData)
	}
	g := s.workers[0]
	if !g.nic.Inject(p.Bytes()) {
		s.t.Fatal("the link took no more packets")
	}
	g.Step(s.now)
	for {
		frame, ok := g.nic.Take(nil)
		if !ok {
			return
		}
		s.arrive(frame, ev)
	}
}

var (
	simVIP     = netip.MustParseAddrPort(vip4 + ":80")
	simBackend = netip.MustParseAddrPort(backend4 + ":8080")
	simSource  = netip.MustParseAddr(snat4)
)

// arrive gives a frame from the worker to its destination's end.
func (s *simulation) arrive(frame []byte, ev *simEvent) {
	ip := frame[14:]
	if ip[9] != header.ProtoTCP {
		return // an ICMP error
	}
	tcp := ip[int(ip[0]&15)*4:]
	seg := simSegment{conn: ev.segment.conn, flags: tcp[13], seq: binary.BigEndian.Uint32(tcp[4:]),
		ack: binary.BigEndian.Uint32(tcp[8:]), data: ev.segment.data}
	to := netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[16:20])), binary.BigEndian.Uint16(tcp[2:]))
	fromClient := ev.from.IsValid()
	own := (to == simBackend) != fromClient // an answer that the worker generated
	if own {
		seg.conn, seg.data = -1, false
	}
	if to == simBackend && !own && seg.flags&(headertest.ACK|headertest.RST) == headertest.ACK {
		s.conns[seg.conn].proven = binary.BigEndian.Uint16(tcp)
	}
	if to == simBackend {
		s.atBackend(seg, binary.BigEndian.Uint16(tcp))
		return
	}
	c := s.sockets[to]
	if c == nil {
		s.t.Fatalf("a segment to %v, which no end has", to)
	}
	s.receive(&c.simEnd, seg)
}

// atBackend handles a segment that arrives at the backend's host.
func (s *simulation) atBackend(seg simSegment, port uint16) {
	if s.server.restarts && s.now-s.began > 20*simSecond {
		s.backend, s.began = map[uint16]*simEnd{}, s.now
	}
	e := s.backend[port]
	if e != nil && e.closed && e.waitsUntil <= s.now {
		delete(s.backend, port)
		e = nil
	}
	if seg.flags&(headertest.SYN|headertest.ACK|headertest.RST) == headertest.SYN &&
		(e == nil || e.closed && int32(seg.seq-e.rcv) > 0) { // RFC 6191 without timestamps
		n := &simEnd{conn: seg.conn, port: port, opening: true, rcv: seg.seq + 1}
		n.una = s.isn(uint64(port) << 20)
		if e != nil && int32(n.una-e.next) <= 0 {
			n.una = e.next + simWindow + 2 // tcp_v4_conn_request, of a socket in TIME_WAIT
		}
		n.next = n.una
		s.backend[port] = n
		s.transmit(n, simSegment{flags: headertest.SYN | headertest.ACK})
		return
	}
	if e == nil {
		s.reset(&simEnd{conn: seg.conn, port: port}, seg)
		return
	}
	s.receive(e, seg)
}

// reset answers a segment for which there is no connection (RFC 9293 section 3.10.7.1).
func (s *simulation) reset(e *simEnd, seg simSegment) {
	switch {
	case seg.flags&headertest.RST != 0:
	case seg.flags&headertest.ACK != 0:
		e.next = seg.ack
		s.control(e, headertest.RST)
	default:
		e.next, e.rcv = 0, seg.end()
		s.control(e, headertest.RST|headertest.ACK)
	}
}

// foreign reports whether a connection is of another client than an end's. TCP itself handles an
// earlier connection with the same addresses and ports: its end answers a SYN with an ACK, and the
// client's RST then ends it (RFC 9293 section 3.5.1).
func (s *simulation) foreign(conn int, e *simEnd) bool {
	return conn >= 0 && s.conns[conn].from != s.conns[e.conn].from
}

// receive handles a segment that arrives at an end (RFC 9293 section 3.10.7, RFC 5961).
func (s *simulation) receive(e *simEnd, seg simSegment) {
	foreign := s.foreign(seg.conn, e)
	const syn, ack, fin, rst = headertest.SYN, headertest.ACK, headertest.FIN, headertest.RST
	accepts := func(what string) {
		if foreign {
			s.accepted++
			s.note("%s of connection %d accepted by an end of %d", what, seg.conn, e.conn)
		}
	}
	switch {
	case e.client != nil && e.client.silent:
		return
	case e.closed && e.client != nil && e.waitsUntil <= s.now:
		s.reset(&simEnd{conn: e.conn, client: e.client}, seg)
		return
	case e.closed && seg.flags&rst != 0:
		return // RFC 1337: no assassination of TIME_WAIT
	case e.closed:
		s.control(e, ack)
		return
	case e.client != nil && e.opening: // SYN-SENT
		valid := seg.flags&ack != 0 && seg.ack == e.next
		switch {
		case seg.flags&ack != 0 && !valid:
			if seg.flags&rst == 0 {
				s.reset(&simEnd{conn: e.conn, client: e.client}, seg)
			}
			s.stray(foreign)
		case seg.flags&rst != 0 && valid:
			s.refused++
			e.closed = true
		case seg.flags&(syn|ack) == syn|ack && valid:
			accepts("SYN-ACK")
			e.opening, e.rcv = false, seg.seq+1
			s.acknowledge(e, seg.ack)
			s.established++
			s.request(e.client)
		default:
			s.stray(foreign)
		}
		return
	}
	in := seg.seq - e.rcv
	switch {
	case seg.flags&syn != 0:
		if e.opening && seg.flags&ack == 0 && seg.seq == e.rcv-1 { // a repeated SYN
			if len(e.unacked) > 0 {
				s.send1(e, e.unacked[0])
			}
			return
		}
		s.stray(foreign)
		s.control(e, ack)
		return
	case seg.flags&rst != 0:
		if in != 0 {
			if in < simWindow {
				s.control(e, ack)
			}
			s.stray(foreign)
			return
		}
		s.ends(e, seg.conn)
		return
	case in >= simWindow:
		s.stray(foreign)
		s.control(e, ack)
		return
	case e.next-seg.ack > simWindow: // RFC 5961 section 5.2
		s.stray(foreign)
		if e.opening {
			s.reset(e, seg)
		} else {
			s.control(e, ack)
		}
		return
	}
	s.acknowledge(e, seg.ack)
	if e.opening {
		if len(e.unacked) > 0 {
			return // the SYN-ACK is not acknowledged
		}
		e.opening = false
	}
	if seg.data {
		if accepts("data"); in == 0 {
			e.rcv += simData
			s.data(e)
		}
	}
	if seg.flags&fin != 0 {
		if accepts("FIN"); in == 0 {
			e.rcv++
			e.saw = true
			if !e.fin {
				s.close(e)
			}
		}
	}
	if seg.data || seg.flags&fin != 0 {
		s.control(e, ack)
	}
	if e.fin && e.saw && len(e.unacked) == 0 {
		e.closed = true
		if e.first {
			e.waitsUntil = s.now + timeWait
		}
	}
}

// stray counts a segment of another connection that changes nothing.
func (s *simulation) stray(foreign bool) {
	if foreign {
		s.strays++
	}
}

// ends ends a connection after an RST from connection by; -1: from the gateway.
func (s *simulation) ends(e *simEnd, by int) {
	c := s.conns[e.conn]
	switch other := by < 0 || s.foreign(by, e); {
	case !other || c.closed || c.silent || e.client == nil && c.proven != 0 && e.port != c.proven:
	case c.proven == 0:
		s.young++
	default:
		s.broken++
		s.note("connection %d was ended by %d", e.conn, by)
	}
	e.closed, e.unacked = true, nil
}

func (s *simulation) note(format string, args ...any) {
	if s.accepted+s.broken < 10 {
		s.t.Logf("%d s: "+format, append([]any{s.now / simSecond}, args...)...)
	}
}

// acknowledge removes acknowledged segments from the list, and restarts the timer.
func (s *simulation) acknowledge(e *simEnd, ack uint32) {
	if int32(ack-e.una) <= 0 || int32(ack-e.next) > 0 {
		return
	}
	e.una = ack
	for len(e.unacked) > 0 && int32(ack-e.unacked[0].end()) >= 0 {
		e.unacked = e.unacked[1:]
	}
	if e.tries = 1; len(e.unacked) > 0 {
		s.arm(e)
	}
}

// data is called when an application gets a request or an answer.
func (s *simulation) data(e *simEnd) {
	if e.client == nil {
		heap.Push(&s.pending, simEvent{at: s.now + s.server.delay(s.rnd, s.now), to: e, request: true})
		return
	}
	s.answered++
	c := e.client
	if c.requests--; c.requests > 0 {
		heap.Push(&s.pending, simEvent{at: s.now + uint64(s.rnd.IntN(int(100*simMilli))), to: e, request: true})
		return
	}
	switch c.leaves {
	case leavesByFIN:
		s.close(e)
	case leavesByRST:
		s.control(e, headertest.RST|headertest.ACK)
		e.closed, e.unacked = true, nil
	case leavesSilently:
		c.silent, e.closed, e.unacked = true, true, nil
	}
}

func (s *simulation) request(c *simClient) {
	s.transmit(&c.simEnd, simSegment{flags: headertest.ACK | headertest.PSH, data: true})
}

func (s *simulation) close(e *simEnd) {
	e.fin, e.first = true, !e.saw
	s.transmit(e, simSegment{flags: headertest.ACK | headertest.FIN})
}

// act handles a timer or an action of an application.
func (s *simulation) act(ev *simEvent) {
	e := ev.to
	switch {
	case e.closed || e.client == nil && s.backend[e.port] != e:
	case ev.request && e.client != nil:
		s.request(e.client)
	case ev.request:
		if !e.fin {
			s.transmit(e, simSegment{flags: headertest.ACK | headertest.PSH, data: true})
			if s.server.closes {
				s.close(e)
			}
		}
	case len(e.unacked) == 0 || ev.tries != e.tries || ev.una != e.una: // outdated
	case e.tries == simTries:
		e.closed, e.unacked = true, nil // given up
		if e.client == nil {
			delete(s.backend, e.port)
		}
	default:
		e.tries++
		s.send1(e, e.unacked[0])
		s.arm(e)
	}
}

// run opens rate connections a second until there were segments segments.
func (s *simulation) run(rate, segments int) {
	next := s.now
	for s.segments < segments {
		if len(s.pending) == 0 || next <= s.pending[0].at {
			s.now = next
			next += simSecond / uint64(rate)
			s.open()
			continue
		}
		ev := heap.Pop(&s.pending).(simEvent)
		s.now = max(s.now, ev.at)
		if ev.to != nil {
			s.act(&ev)
		} else {
			s.forward(&ev)
		}
	}
}

// TestConnectionsStayApart: for all behaviours of the backend and its clients, no end of a TCP
// connection accepts data, a FIN, an RST or a SYN-ACK of another client's connection, and only the
// connection's own ends end it. While ports are free, no segment reaches another client at all. If
// none is free, a port is used again whose last connection is in TIME_WAIT at the backend: the new
// client then rejects the backend's segments of the old connection by their sequence numbers (RFC
// 9293 section 3.10.7.3). If ports are that scarce, a FIN or an RST of an earlier connection, which
// no end accepts, can make a connection seem over, and it loses its port when it is idle: the
// gateway does not track sequence numbers of open connections.
func TestConnectionsStayApart(t *testing.T) {
	rates, ranges := []int{50, 500, 2000}, []int{256, 2048, 13616}
	segments := size.Runs(t, 0, 50_000) / (len(simServers) * len(rates) * len(ranges))
	if segments == 0 {
		rates, ranges, segments = []int{500}, []int{512, 13616}, 25_000
		if testing.Short() {
			segments /= 5
		}
	}
	for _, server := range simServers {
		for _, rate := range rates {
			for _, ports := range ranges {
				t.Run(fmt.Sprintf("%s, %d a second, %d ports", server.name, rate, ports), func(t *testing.T) {
					simulateConnections(t, server, rate, ports, segments)
				})
			}
		}
	}
}

func simulateConnections(t *testing.T, server simServer, rate, ports, segments int) {
	l := newLab(t, labConfig{flows: 100_000, snat: services.PortRange{First: 16384, Count: uint16(ports)}})
	l.validate = false
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SLUICE_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("SLUICE_SEED=%d", seed)
	s := &simulation{lab: l, rnd: rand.New(rand.NewPCG(seed, 2)), server: server,
		sockets: map[netip.AddrPort]*simClient{}, backend: map[uint16]*simEnd{}, began: l.now}
	s.run(rate, segments)
	taken := s.table.Counts().PortsTaken[1]
	t.Logf("%d segments in %d s; %d connections, %d established, %d answers, %d refused; %d strays, %d accepted by "+
		"another end, %d broken, %d young ones, %d ports taken; drops %v", s.segments,
		(s.now-uint64(time.Hour))/simSecond, s.opened, s.established, s.answered, s.refused, s.strays, s.accepted,
		s.broken, s.young, taken, s.drops())
	mayBreak := 0
	if taken > 0 {
		mayBreak = 1 + s.established/1000
	}
	if s.accepted > 0 || s.broken > mayBreak {
		t.Errorf("%d segments were accepted by another end, %d connections were broken", s.accepted, s.broken)
	}
	if s.strays > 0 && s.opened < ports/2 && server.lost+server.late == 0 {
		t.Errorf("%d segments reached another client, though ports were free", s.strays)
	}
	if s.established < s.opened/20 {
		t.Error("hardly any connection was established")
	}
}
