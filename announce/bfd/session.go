package bfd

import "time"

// Parameters are the parameters in a BFDProfile.
type Parameters struct {
	Receive, Transmit time.Duration // Required Min RX, Desired Min TX
	Multiplier        uint8         // Detect Mult
}

const (
	// maxInterval is the longest interval that a router may ask for, as in a BFDProfile.
	maxInterval = time.Minute
	// maxDetection bounds the detection time, which a packet could set to 255 times 71 minutes. But
	// three packets may be missing in any case (detection).
	maxDetection = 10 * time.Second
	// slowInterval is the least interval of packets while the session is not up (RFC 5880, section
	// 6.8.3).
	slowInterval = time.Second
	// punctual is how late the clock may be at the end of a detection time. If it is later, this
	// process was not scheduled, and packets that came meanwhile must be read first.
	punctual = 20 * time.Millisecond
)

// session is the state of one session (RFC 5880, section 6.8.1). It is not safe for concurrent use.
type session struct {
	configured Parameters // also in packets
	// receive and transmit are the intervals in force. After a change they may be the previous ones
	// until the router has answered a poll (RFC 5880, section 6.8.3).
	receive, transmit time.Duration
	my, your          uint32 // discriminators; your is 0 while it is unknown
	state             State
	diag              uint8
	since             time.Time // of state
	remote            remote
	polling           bool
	expires           time.Time // end of the detection time; zero: no packet since the last expiry
	extended          bool      // expires was delayed by punctual, because the clock was late
	next              time.Time // when a packet is due; unused while the router wants none
	random            func() uint32
}

// remote is the content of the router's last packet.
type remote struct {
	state   State
	receive time.Duration // its Required Min RX; 0: it wants no periodic packets
	demand  bool
}

// noRemote is assumed before the first packet (RFC 5880, section 6.8.1).
var noRemote = remote{state: Down, receive: time.Microsecond}

// newSession returns a session in state Down whose first packet is due now. random returns 32
// random bits.
func newSession(p Parameters, now time.Time, random func() uint32) *session {
	s := &session{configured: p, receive: p.Receive, transmit: p.Transmit, state: Down, since: now, remote: noRemote,
		next: now, random: random}
	for s.my == 0 {
		s.my = random()
	}
	return s
}

// configure changes the parameters of a session without ending it. If it is up, the router gets
// them by a poll; a longer transmit interval and a shorter receive interval take effect after its
// answer.
func (s *session) configure(p Parameters, now time.Time) {
	if p == s.configured {
		return
	}
	s.configured = p
	if s.state != Up {
		s.receive, s.transmit = p.Receive, p.Transmit
		return
	}
	s.receive, s.transmit = max(s.receive, p.Receive), min(s.transmit, p.Transmit)
	s.polling, s.next = true, now
}

// accepts reports whether a packet belongs to the session (RFC 5880, section 6.8.6). A packet
// without Your Discriminator could come from any host, so it must have the router's discriminator
// to end a session that is up. A router that restarted is found by the detection time.
func (s *session) accepts(p *packet) bool {
	if p.your != 0 {
		return p.your == s.my
	}
	return p.state <= Down && (s.state != Up || p.my == s.your)
}

// packet processes an accepted packet. final: a packet with the Final bit must be sent. failed, if
// not empty, is why the session, which was up, is down now.
func (s *session) packet(p *packet, now time.Time) (final bool, failed string) {
	s.your = p.my
	s.remote = remote{state: p.state, receive: p.receive, demand: p.demand}
	if p.final && s.polling {
		s.polling, s.receive, s.transmit = false, s.configured.Receive, s.configured.Transmit
	}
	if s.state == AdminDown {
		return false, ""
	}
	switch {
	case p.state == AdminDown && s.state != Down:
		s.to(Down, diagNeighborDown, now) // not a failure of the path (RFC 5882, section 3.2)
	case p.state == Down && s.state == Down:
		s.to(Init, diagNone, now)
	case p.state == Down && s.state == Up:
		s.to(Down, diagNeighborDown, now)
		failed = "the router's BFD went down"
	case p.state == Init && s.state < Up, p.state == Up && s.state == Init:
		s.to(Up, diagNone, now)
	}
	s.expires, s.extended = now.Add(s.detection(p)), false
	if due := now.Add(s.interval()); due.Before(s.next) {
		s.next = due
	}
	return p.poll, failed
}

// detection returns the detection time (RFC 5880, section 6.8.4), bounded by maxDetection.
func (s *session) detection(p *packet) time.Duration {
	interval := max(s.receive, p.transmit)
	most := maxDetection
	if s.state == Up {
		most = max(most, 3*interval)
	}
	return min(time.Duration(p.multiplier)*interval, most)
}

// expire ends the session if the detection time has passed. failed is as in packet.
func (s *session) expire(now time.Time) (failed string) {
	if s.expires.IsZero() || now.Before(s.expires) {
		return ""
	}
	if !s.extended && now.Sub(s.expires) > punctual {
		s.expires, s.extended = now.Add(punctual), true
		return ""
	}
	s.your, s.remote, s.expires = 0, noRemote, time.Time{}
	if s.state == Up {
		failed = "no packet of the router's BFD has come for the detection time"
	}
	if s.state > Down {
		s.to(Down, diagExpired, now)
	}
	return failed
}

// to changes the state; a packet with it is due at once (RFC 5880, section 6.8.7).
func (s *session) to(state State, diag uint8, now time.Time) {
	s.state, s.diag, s.since, s.next = state, diag, now, now
	s.receive, s.transmit = s.configured.Receive, s.configured.Transmit
	s.polling = state == Up // the transmit interval gets shorter now
}

// close takes the session out of service. It returns until when packets must be sent, so that the
// router gets one and does not take the end for a failure.
func (s *session) close(now time.Time) (end time.Time) {
	s.to(AdminDown, diagAdminDown, now)
	return now.Add(min(time.Duration(s.configured.Multiplier)*max(slowInterval, s.remote.receive), maxDetection))
}

// interval is the time between two packets (RFC 5880, sections 6.8.2 and 6.8.3), without jitter.
func (s *session) interval() time.Duration {
	if s.state == Up {
		return max(s.transmit, s.remote.receive)
	}
	return max(s.transmit, s.remote.receive, slowInterval)
}

// due returns when a packet must be sent; zero: none is (RFC 5880, section 6.8.7).
func (s *session) due() time.Time {
	if s.remote.receive == 0 ||
		s.remote.demand && s.state == Up && s.remote.state == Up && !s.polling {
		return time.Time{}
	}
	return s.next
}

// send returns the packet that is due, and sets when the next one is: after three quarters of the
// interval to all of it (RFC 5880, section 6.8.7; Detect Mult is never 1 here).
func (s *session) send(now time.Time) packet {
	s.next = now.Add(s.interval() * time.Duration(75+s.random()%26) / 100)
	return s.say(s.polling, false)
}

// say returns a packet with the session's state.
func (s *session) say(poll, final bool) packet {
	p := packet{diag: s.diag, state: s.state, poll: poll, final: final, multiplier: s.configured.Multiplier, my: s.my,
		your: s.your, transmit: s.configured.Transmit, receive: s.configured.Receive}
	if s.state != Up {
		p.transmit = max(p.transmit, slowInterval)
	}
	return p
}

// nextWake returns when expire or send must be called; zero: not before a packet arrives.
func (s *session) nextWake() (at time.Time) {
	at = s.due()
	if !s.expires.IsZero() && (at.IsZero() || s.expires.Before(at)) {
		at = s.expires
	}
	return at
}
