package layer2

import (
	"net/netip"
	"time"

	"sluice.dev/sluice/announce/layer2/frame"
	"sluice.dev/sluice/announce/layer2/hello"
	"sluice.dev/sluice/announce/layer2/members"
)

// Minimal intervals at which a VIP is announced again because another host claims it.
const (
	contradictOther  = 10 * time.Second // DEFEND_INTERVAL of RFC 5227, section 1.1
	contradictMember = time.Second      // long enough for the member to learn who owns the VIP
)

// Values of the metric label "by": who claims a VIP.
const (
	byMember = "member"
	byOther  = "other"
)

// dispute records claims of another host for a VIP that this gateway owns.
type dispute struct {
	by        string // the member's name; empty: not a member
	mac       frame.MAC
	last      time.Time
	count     uint64
	announced time.Time // when the VIP was announced again
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

// answer reports whether a packet must be answered, and with which hardware address: it asks for a
// VIP that this gateway owns, or whose owner's process is away. It also records the packet's claim.
func (l *link) answer(s *sockets, p frame.Packet) (at frame.MAC, yes bool) {
	if p.FromMAC == s.mac {
		return at, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.stepped) >= time.Duration(l.config.Silent)*l.config.Every {
		return at, false // no hello was sent for so long that the others count this member as dead, and answer
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

// claimed records that another host claims a VIP of this gateway. While a VIP moves, a member that
// does not know it yet does so.
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
		l.log.Warn("another host claims a VIP of this gateway", "vip", p.Claims, "mac", p.FromMAC)
	}
	d.by, d.mac, d.last = who, p.FromMAC, now
	d.count++
	if now.Sub(d.announced) >= pace {
		d.announced = now
		l.queue.again(p.Claims, now)
		l.wake.Raise()
	}
}

// showDispute is how long after the last claim a dispute is shown.
const showDispute = time.Minute

// logEvery is the least interval of log lines about one reject reason.
const logEvery = time.Minute

// logged are log messages for the reject reasons that need an operator. The other reasons occur
// whenever members come and go.
var logged = map[hello.RejectReason]string{
	hello.Forged:     "hellos are rejected: their sender has none of the keys",
	hello.Version:    "hellos are rejected: they have another version",
	members.SameName: "hellos are rejected: another node has the name of this one",
	members.Own:      "own hellos come back: another interface of this node is on the same link",
	members.Full:     "hellos are rejected: there are too many gateways on the link",
	members.Replayed: "hellos are rejected: all hellos of a gateway are older than an accepted one: a host " +
		"replays recorded ones, or the gateway's announcer must be restarted",
}

// reasons are all reject reasons, for metrics.
var reasons = []hello.RejectReason{hello.Forged, hello.Version, members.Replayed, members.Unproven, members.Own,
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
		if refusal == members.Replayed { // some occur when members come and go, or frames are duplicated
			there = l.members.OnlyReplays(h.Name, now)
		}
		if there && now.Sub(l.loggedAt[refusal]) >= logEvery {
			l.loggedAt[refusal] = now
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

// disputeOf returns the recent dispute about a VIP; nil if there is none.
func (l *link) disputeOf(vip netip.Addr, now time.Time) *dispute {
	d := l.disputes[vip]
	if d == nil || now.Sub(d.last) > showDispute {
		return nil
	}
	return d
}
