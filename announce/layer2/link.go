package layer2

import (
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/time/rate"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/layer2/frame"
	"sluice.dev/sluice/announce/layer2/hello"
	"sluice.dev/sluice/announce/layer2/members"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/wake"
)

const (
	// reopenEvery is how often is tried to open the sockets of a link that is up.
	reopenEvery = 200 * time.Millisecond
	// answersPerSecond bounds the answers on a link: a host asks once a second, and again when what
	// it knows is old.
	answersPerSecond = 5000
	// goodbyes are sent, since frames get lost.
	goodbyes = 3
)

// link is an interface on which VIPs are announced.
type link struct {
	name        string
	config      *Config
	given       *incarnations
	incarnation uint64
	log         *slog.Logger
	poke        func()    // what is reported has changed
	wake        wake.Flag // looks for what is due at once
	ended       chan struct{}
	done        chan struct{}
	readers     sync.WaitGroup
	carrier     carrier // of the goroutine that runs
	beat        *heartbeat.Beat

	mu       sync.Mutex // guards what follows
	stepped  time.Time  // when step was called last
	keys     hello.Keys
	wishes   []Wish
	serves   bool // the gateway is heard, and forwards now
	keep     bool // the VIPs are to be kept for the next process
	members  *members.Members
	sockets  *sockets // nil: the link is down
	broken   bool     // sockets are to be opened again
	why      string   // it is down
	tried    time.Time
	version  uint64 // of members, that poke was called for
	queue    queue
	answers  *rate.Limiter
	disputes map[netip.Addr]*dispute
	said     map[hello.Refusal]time.Time // when it was logged
	count    counters
}

// counters are those of a link.
type counters struct {
	sent, received   uint64
	refused          map[hello.Refusal]uint64
	answers, limited [2]uint64 // by family
	announcements    [2]uint64
	failed           uint64            // frames that could not be sent
	claims           map[string]uint64 // by whom
}

// family is an index for counters.
func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

func newLink(name string, c *Config, given *incarnations, keys hello.Keys, poke func()) (*link, error) {
	carrier, err := newCarrier()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	l := &link{name: name, config: c, given: given, incarnation: given.begin(now), log: c.Log.With("interface", name),
		poke: poke, keys: keys, carrier: carrier, stepped: now,
		beat: c.Beats.Add("link "+name, heartbeat.DefaultBounds),
		wake: wake.NewFlag(), ended: make(chan struct{}), done: make(chan struct{}),
		answers: rate.NewLimiter(answersPerSecond, answersPerSecond), disputes: map[netip.Addr]*dispute{},
		said:  map[hello.Refusal]time.Time{},
		queue: newQueue(), count: counters{refused: map[hello.Refusal]uint64{}, claims: map[string]uint64{}}}
	l.members = members.New(members.Config{Name: c.Name, Incarnation: l.incarnation, Ours: given.ours, Every: c.Every,
		Silent: c.Silent, Settle: c.Settle, Return: c.Return, Nonce: c.Nonce}, now)
	return l, nil
}

// set replaces what is announced.
func (l *link) set(p *Plan, keys hello.Keys, mac frame.MAC) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wishes := p.Links[l.name]
	l.wishes, l.serves, l.keys = wishes, p.Serves, keys
	if l.sockets != nil && mac != (frame.MAC{}) && l.sockets.mac != mac {
		l.broken = true
	}
	list := make([]members.Standing, 0, len(wishes))
	for _, w := range wishes {
		list = append(list, members.Standing{VIP: w.VIP, Eligible: w.Grade != announce.No, Rank: rankOf(w.Grade)})
	}
	l.members.SetVIPs(list, p.Ready, time.Now())
	if l.sockets != nil {
		l.joinGroups()
	}
	l.wake.Raise()
}

func rankOf(g announce.Grade) members.Rank {
	switch g {
	case announce.LastResort:
		return members.LastResort
	case announce.Leaving:
		return members.Leaves
	}
	return members.Stays
}

func (l *link) joinGroups() {
	err := l.sockets.groups.set(l.wishes)
	if err != nil && l.sockets.acceptsGroupsFail == nil {
		l.log.Warn("neighbour solicitations may not arrive: is IPv6 off on the interface?", "error", err)
	}
	l.sockets.acceptsGroupsFail = err
}

// end gives the VIPs to others, and ends the link. With returns, others keep them for the next
// process, unless this gateway does not forward on either, as far as is heard of it.
func (l *link) end(returns bool) {
	l.mu.Lock()
	l.keep = returns && l.keeps()
	l.mu.Unlock()
	close(l.ended)
	<-l.done
}

// keeps reports whether packets need this gateway's announcer only to be asked for: one that is
// waited for, or leaves, may be gone while its VIPs are kept.
func (l *link) keeps() bool {
	return l.serves && !slices.ContainsFunc(l.wishes, func(w Wish) bool { return w.Grade == announce.Leaving })
}

func (l *link) run() {
	defer close(l.done)
	defer l.carrier.close()
	defer l.config.Beats.Remove(l.beat)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		l.beat.Beat()
		timer.Reset(time.Until(l.step(time.Now())))
		select {
		case <-l.ended:
			l.goodbye()
			l.shut("it ends")
			l.given.end(l.incarnation, time.Now())
			return
		case <-l.wake:
		case <-timer.C:
		}
	}
}

// step does what is due, and returns when it must be called again at the latest.
func (l *link) step(now time.Time) time.Time {
	l.follow(now)
	l.mu.Lock()
	l.stepped = now
	l.members.Tick(now)
	hellos := l.members.Hellos(now)
	gained, lost := l.members.Take()
	if l.sockets != nil { // else nothing is taken out of the queue; and it joins when it is up
		for _, vip := range gained {
			l.queue.add(vip, now)
		}
	}
	for _, vip := range lost {
		delete(l.disputes, vip)
	}
	var out []outFrame
	if l.sockets != nil {
		for _, h := range hellos {
			out = append(out, outFrame{l.sockets.hellos,
				frame.Wrap(hello.Group, l.sockets.mac, hello.EtherType, l.keys.Seal(h))})
		}
		l.count.sent += uint64(len(hellos))
		out = append(out, l.due(now)...)
	}
	next := l.members.Next()
	if t, there := l.queue.next(now); there && l.sockets != nil && t.Before(next) {
		next = t
	}
	changed := l.members.Version() != l.version
	l.version = l.members.Version()
	l.mu.Unlock()
	l.send(out)
	if changed {
		l.poke()
	}
	return next
}

// outFrame is a frame to be sent by a socket.
type outFrame struct {
	by *packet.Conn
	b  []byte
}

func (l *link) send(list []outFrame) {
	for _, f := range list {
		if err := send(f.by, f.b); err != nil {
			l.mu.Lock()
			l.count.failed++
			l.mu.Unlock()
		}
	}
}

// due returns the announcements that are due, of VIPs that are still here.
func (l *link) due(now time.Time) (out []outFrame) {
	for _, vip := range l.queue.take(now, l.members.Owns) {
		l.count.announcements[family(vip)]++
		if vip.Is6() {
			out = append(out, outFrame{l.sockets.ndp, frame.Unsolicited(l.sockets.mac, vip)})
			continue
		}
		for _, b := range frame.ARPAnnouncements(l.sockets.mac, vip) {
			out = append(out, outFrame{l.sockets.arp, b})
		}
	}
	return out
}

// follow opens and closes the sockets as the interface comes and goes.
func (l *link) follow(now time.Time) {
	index, why := l.carrier.up(l.name)
	l.mu.Lock()
	open, broken := l.sockets != nil, l.broken || l.sockets != nil && l.sockets.index != index
	wait := now.Before(l.tried.Add(reopenEvery))
	l.mu.Unlock()
	switch {
	case open && why != "":
		l.shut(why)
	case open && broken:
		l.shut("its sockets are opened again")
		l.open(now)
	case !open && why == "" && !wait:
		l.open(now)
	case !open && why != "":
		l.down(why)
	}
}

// down says why the link is down.
func (l *link) down(why string) {
	l.mu.Lock()
	changed := l.why != why
	l.why = why
	l.mu.Unlock()
	if changed {
		l.log.Warn("the link is down: nothing is announced on it", "why", why)
		l.poke()
	}
}

func (l *link) shut(why string) {
	l.mu.Lock()
	s := l.sockets
	l.sockets, l.broken = nil, false
	l.mu.Unlock()
	if s != nil {
		s.close()
		l.readers.Wait()
	}
	l.down(why)
}

// open opens the sockets of the link, which has come up: who was on it while it was down is not
// known, and so this gateway joins.
func (l *link) open(now time.Time) {
	s, err := openSockets(l.name)
	l.mu.Lock()
	l.tried = now
	if err != nil {
		l.mu.Unlock()
		l.down(err.Error())
		return
	}
	l.sockets, l.broken, l.why = s, false, ""
	l.joinGroups()
	l.members.Rejoin(now)
	l.mu.Unlock()
	l.log.Info("the link is up", "mac", s.mac)
	l.poke()
	l.readers.Go(func() { l.read(s, s.arp, "ARP", l.takeARP) })
	l.readers.Go(func() { l.read(s, s.ndp, "NDP", l.takeNDP) })
	l.readers.Go(func() { l.read(s, s.hellos, "hellos", l.takeHello) })
}

// read takes the frames of a socket until it is closed or fails.
func (l *link) read(s *sockets, c *packet.Conn, what string, take func(*sockets, []byte) []outFrame) {
	beat := l.config.Beats.Add("reader of "+what+" on "+l.name, heartbeat.DefaultBounds)
	defer l.config.Beats.Remove(beat)
	b := make([]byte, maxFrame)
	for {
		beat.Rest()
		n, _, err := c.ReadFrom(b)
		beat.Beat()
		if err != nil {
			l.mu.Lock()
			l.broken = l.broken || l.sockets == s
			l.mu.Unlock()
			return
		}
		l.send(take(s, b[:n]))
	}
}

// goodbye tells the others that they have the VIPs from now on, or keep them.
func (l *link) goodbye() {
	for range goodbyes {
		l.mu.Lock()
		h := l.members.Goodbye(l.keep, time.Now())
		var out []outFrame
		if l.sockets != nil {
			out = append(out, outFrame{l.sockets.hellos,
				frame.Wrap(hello.Group, l.sockets.mac, hello.EtherType, l.keys.Seal(h))})
			l.count.sent++
		}
		l.mu.Unlock()
		l.send(out)
	}
}
