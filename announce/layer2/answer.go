package layer2

import (
	"net/netip"
	"time"

	"sluice.dev/sluice/announce/layer2/frame"
	"sluice.dev/sluice/announce/layer2/hello"
	"sluice.dev/sluice/announce/layer2/members"
)

// A VIP that others claim is announced again, but not more often than this.
const (
	contradictOther  = 10 * time.Second // DEFEND_INTERVAL of RFC 5227, section 1.1
	contradictMember = time.Second      // it has learnt by now that it does not have the VIP
)

// Who claims VIPs, in counters.
const (
	byMember = "member"
	byOther  = "other"
)

// dispute is what somebody else says about a VIP that is here.
type dispute struct {
	by    string // a member's name, or empty
	mac   frame.MAC
	last  time.Time
	count uint64
	said  time.Time // when the VIP was announced again
}

func (l *link) takeARP(s *sockets, b []byte) []outFrame {
	p, ok := frame.ReadARP(b)
	if !ok {
		return nil
	}
	at, ok := l.answer(s, p)
	if !ok {
		return nil
	}
	return []outFrame{{s.arp, frame.SentBy(s.mac, frame.ARPReply(at, p))}}
}

func (l *link) takeNDP(s *sockets, b []byte) []outFrame {
	p, ok := frame.ReadNDP(b)
	if !ok {
		return nil
	}
	at, ok := l.answer(s, p)
	if !ok {
		return nil
	}
	return []outFrame{{s.ndp, frame.SentBy(s.mac, frame.Advertisement(at, p))}}
}

// answer reports whether a packet is to be answered, and with which hardware address: it asks for a
// VIP that is here, or whose owner's process is away. It notes what the packet claims.
func (l *link) answer(s *sockets, p frame.Packet) (at frame.MAC, yes bool) {
	if p.FromMAC == s.mac {
		return at, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.stepped) >= time.Duration(l.config.Silent)*l.config.Every {
		return at, false // no hello was sent for so long that others count this member as dead, and answer
	}
	if p.Claims.IsValid() && l.members.Owns(p.Claims) {
		l.claimed(p, now)
	}
	if !p.Asks.IsValid() {
		return at, false
	}
	at, yes = s.mac, l.members.Owns(p.Asks)
	if !yes {
		at, yes = l.members.AnswersFor(p.Asks)
	}
	if !yes || at == p.FromMAC {
		return at, false
	}
	if !l.answers.AllowN(now, 1) {
		l.count.limited[family(p.Asks)]++
		return at, false
	}
	l.count.answers[family(p.Asks)]++
	return at, true
}

// claimed notes that somebody says to have a VIP that is here. While a VIP moves, a member says so
// that does not know it yet.
func (l *link) claimed(p frame.Packet, now time.Time) {
	by, who, pace := byOther, "", contradictOther
	if name := l.members.NameOf(p.FromMAC); name != "" {
		by, who, pace = byMember, name, contradictMember
	}
	l.count.claims[by]++
	d := l.disputes[p.Claims]
	if d == nil {
		d = &dispute{}
		l.disputes[p.Claims] = d
	}
	if by == byOther && now.Sub(d.last) > showDispute {
		l.log.Warn("another host says that it has a VIP", "vip", p.Claims, "mac", p.FromMAC)
	}
	d.by, d.mac, d.last = who, p.FromMAC, now
	d.count++
	if now.Sub(d.said) >= pace {
		d.said = now
		l.queue.again(p.Claims, now)
		l.wake.Raise()
	}
}

// showDispute is how long after the last claim one is shown.
const showDispute = time.Minute

// logEvery is how often a reason to refuse hellos is logged.
const logEvery = time.Minute

// logged are the reasons that an operator should know of. Others happen whenever members come and
// go.
var logged = map[hello.Refusal]string{
	hello.Forged:     "hellos are refused: who wrote them has not one of the keys",
	hello.Version:    "hellos are refused: they are of another version",
	members.SameName: "hellos are refused: another node has the name of this one",
	members.Own:      "own hellos come back: another interface of this node is on the same link",
	members.Full:     "hellos are refused: there are more gateways on the link than can be",
	members.Replayed: "hellos are refused: all that come of a gateway are older than one that was used: somebody " +
		"repeats recorded ones, or its announcer has to be started again",
}

// reasons are all why hellos are refused.
var reasons = []hello.Refusal{hello.Forged, hello.Version, members.Replayed, members.Unproven, members.Own,
	members.SameName, members.Full}

func (l *link) takeHello(s *sockets, b []byte) []outFrame {
	text, from, ok := frame.Payload(b, hello.EtherType)
	if !ok {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	h, refusal := l.keys.Open(text)
	if refusal == "" {
		refusal = l.members.Receive(h, from, now)
	}
	if refusal != "" {
		l.count.refused[refusal]++
		text, there := logged[refusal]
		if refusal == members.Replayed { // some are when members come and go, or frames come twice
			there = l.members.OnlyReplays(h.Name, now)
		}
		if there && now.Sub(l.said[refusal]) >= logEvery {
			l.said[refusal] = now
			l.log.Warn(text, "mac", from)
		}
		return nil
	}
	l.count.received++
	if l.members.Version() != l.version {
		l.wake.Raise()
	}
	return nil
}

// disputeOf returns what somebody else said about a VIP lately.
func (l *link) disputeOf(vip netip.Addr, now time.Time) *dispute {
	d := l.disputes[vip]
	if d == nil || now.Sub(d.last) > showDispute {
		return nil
	}
	return d
}
