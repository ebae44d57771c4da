package conn

import (
	"fmt"
	"math"
	"time"
)

// Timeouts has the time for which a flow lives without packets, by state.
type Timeouts struct {
	SynSeen     time.Duration // TCP: the client's SYN, no answer
	SynAckSeen  time.Duration // TCP: the backend answered, the client has not acknowledged
	Established time.Duration // TCP; SCTP: also while the backend has sent nothing since COOKIE ECHO
	Fin         time.Duration // TCP: one direction closed
	LastAck     time.Duration // TCP: both directions closed, the last ACK is missing

	// TCP closed. The side that closed first is in TIME_WAIT. If that is the backend, it compares
	// another client's SYN from the same port with the old connection, so the port must rest
	// longer.
	TimeWaitClient, TimeWaitBackend time.Duration

	Reset            time.Duration // TCP: rejected, or an RST outside Established
	ResetEstablished time.Duration // TCP: an RST while established (RFC 7857 section 2.2)

	UDPUnreplied time.Duration // UDP: no reply, or no packet of the client after it
	UDPReplied   time.Duration // UDP: the client sent after a reply
	ICMP         time.Duration

	// UDPIdle is not a timeout: an assured UDP flow that was idle for longer may be shed under
	// pressure. A flow with little use may be shed earlier.
	UDPIdle time.Duration
}

// DefaultTimeouts suit a balancer in front of servers: RFC 5382's timeout for established
// connections, shorter ones for the states that a SYN flood can create.
func DefaultTimeouts() Timeouts {
	return Timeouts{
		SynSeen:          10 * time.Second,
		SynAckSeen:       30 * time.Second,
		Established:      7440 * time.Second,
		Fin:              300 * time.Second,
		LastAck:          30 * time.Second,
		TimeWaitClient:   5 * time.Second,
		TimeWaitBackend:  60 * time.Second,
		Reset:            10 * time.Second,
		ResetEstablished: 240 * time.Second,
		UDPUnreplied:     30 * time.Second,
		UDPReplied:       300 * time.Second,
		ICMP:             60 * time.Second,
		UDPIdle:          120 * time.Second,
	}
}

// RFCTimeouts follow RFC 5382 REQ-5 (TCP: 2 h 4 min established, 4 min transitory),
// RFC 7857 section 2.2 (4 min after an RST), RFC 4787 REQ-5 (UDP: 5 min) and
// RFC 5508 REQ-1 (ICMP queries: 60 s).
func RFCTimeouts() Timeouts {
	const transitory = 240 * time.Second
	return Timeouts{
		SynSeen:          transitory,
		SynAckSeen:       transitory,
		Established:      7440 * time.Second,
		Fin:              transitory,
		LastAck:          transitory,
		TimeWaitClient:   transitory,
		TimeWaitBackend:  transitory,
		Reset:            transitory,
		ResetEstablished: transitory,
		UDPUnreplied:     300 * time.Second,
		UDPReplied:       300 * time.Second,
		ICMP:             60 * time.Second,
		UDPIdle:          120 * time.Second,
	}
}

// Lifetimes holds the maximum age of a flow, in ticks, by the life bits of its Meta word: state,
// reset, pending. A record that is not live is always expired.
type Lifetimes [64]int32

// maxTimeout keeps differences of ticks far from the sign bit.
const maxTimeout = 365 * 24 * time.Hour

// Lifetimes returns the maximum ages, or an error if a timeout is shorter than a second or too
// long.
func (t *Timeouts) Lifetimes() (l Lifetimes, err error) {
	for i := range l {
		l[i] = math.MinInt32
	}
	for _, e := range []struct {
		name     string
		normal   time.Duration
		afterRST time.Duration
		states   []State
	}{
		{"SynSeen", t.SynSeen, min(t.Reset, t.SynSeen), []State{SynSeen}},
		{"SynAckSeen", t.SynAckSeen, min(t.Reset, t.SynAckSeen), []State{SynRecv}},
		{"Established", t.Established, min(t.ResetEstablished, t.Established), []State{Unconfirmed, Established}},
		{"Fin", t.Fin, min(t.Reset, t.Fin), []State{FinClient, FinBackend}},
		{"LastAck", t.LastAck, min(t.Reset, t.LastAck), []State{LastAckClient, LastAckBackend}},
		{"TimeWaitClient", t.TimeWaitClient, t.TimeWaitClient, []State{TimeWaitClient}},
		{"TimeWaitBackend", t.TimeWaitBackend, t.TimeWaitBackend, []State{TimeWaitBackend}},
		{"Reset", t.Reset, t.Reset, []State{Closed}},
		{"ResetEstablished", t.ResetEstablished, t.ResetEstablished, nil},
		{"UDPUnreplied", t.UDPUnreplied, t.UDPUnreplied, []State{UDPNew, UDPReplied}},
		{"UDPReplied", t.UDPReplied, t.UDPReplied, []State{UDPAssured}},
		{"ICMP", t.ICMP, t.ICMP, []State{ICMPEcho}},
		{"UDPIdle", t.UDPIdle, t.UDPIdle, nil},
	} {
		if e.normal < time.Second || e.normal > maxTimeout {
			return l, fmt.Errorf("timeout %s is %v: must be between 1s and %v", e.name, e.normal, maxTimeout)
		}
		for _, s := range e.states {
			// Last seen may be a second earlier than the last packet: see RefreshTicks.
			m := MakeMeta(s, 0, 0)
			l[m.Life()] = TicksOf(e.normal) + RefreshTicks
			l[(m | MetaReset).Life()] = TicksOf(e.afterRST) + RefreshTicks
		}
	}
	return l, nil
}

// Expired reports whether a flow with this Meta is expired.
func (l *Lifetimes) Expired(m Meta, now Ticks) bool {
	return now.Since(m.Seen()) > l[m.Life()]
}

// Steady holds the maximum age, in ticks, at which a datagram, or a TCP segment with ACK and
// without SYN, FIN and RST, only refreshes the flow. Its indexes are the side and the byte of Meta
// above last seen (state and notes). The age is negative if such a packet changes the flow, or if
// there is no flow.
type Steady [2][256]int32

// Steady returns the table for these lifetimes.
func (l *Lifetimes) Steady() (s Steady) {
	for side := range s {
		for i := range s[side] {
			s[side][i] = math.MinInt32
		}
		for state := SynSeen; state < NumStates; state++ {
			mv := moves[state][side][classACK]
			if state >= UDPNew {
				mv = datagram[state][side]
			}
			if mv == move(state)|refresh {
				s[side][state] = l[MakeMeta(state, 0, 0).Life()]
			}
		}
	}
	return s
}
