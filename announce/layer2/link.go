package layer2

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
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
	// reopenEvery is the interval of attempts to open the sockets of a link that is up.
	reopenEvery = 200 * time.Millisecond
	// answersPerSecond bounds the answers on a link. A host asks once a second, and again when its
	// cache entry is old.
	answersPerSecond = 5000
	// goodbyes is how often a goodbye is sent, because frames get lost.
	goodbyes = 3
)

// link is an interface on which VIPs are announced.
type link struct {
	name         string
	config       *Config
	incarnations *incarnations
	incarnation  uint64
	log          *slog.Logger
	notify       func()    // reports that the result of Report has changed
	wake         wake.Flag // makes run call step at once
	ended        chan struct{}
	done         chan struct{}
	readers      sync.WaitGroup
	carrier      carrier // used by run's goroutine
	transmit     func(outFrame) error
	beat         *heartbeat.Beat

	mu       sync.Mutex // guards the fields below
	stepped  time.Time  // the last step
	keys     hello.Keys
	vips     []LinkVIP
	serves   bool // the gateway's pulse arrives and it forwards
	keep     bool // ask the others to keep the VIPs for the next process
	members  *members.Members
	sockets  *sockets // nil: the link is down
	broken   bool     // sockets must be opened again
	why      string   // why the link is down
	tried    time.Time
	version  uint64 // of members at the last call of poke
	queue    queue
	answers  *rate.Limiter
	disputes map[netip.Addr]*dispute
	loggedAt map[hello.RejectReason]time.Time // when it was last logged
	count    counters
}

// counters are a link's counters.
type counters struct {
	sent, received   uint64
	refused          map[hello.RejectReason]uint64
	answers, limited [2]uint64 // by family
	announcements    [2]uint64
	failed           uint64            // frames that could not be sent
	claims           map[string]uint64 // by whom
}

// family returns the index of an address's family in counters.
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
	l := &link{name: name, config: c, incarnations: given, incarnation: given.begin(now),
		log:    c.Log.With("interface", name),
		notify: poke, keys: keys, carrier: carrier, transmit: outFrame.send, stepped: now,
		beat: c.Beats.Add("link "+name, heartbeat.DefaultBounds),
		wake: wake.NewFlag(), ended: make(chan struct{}), done: make(chan struct{}),
		answers: rate.NewLimiter(answersPerSecond, answersPerSecond), disputes: map[netip.Addr]*dispute{},
		loggedAt: map[hello.RejectReason]time.Time{},
		queue:    newQueue(), count: counters{refused: map[hello.RejectReason]uint64{}, claims: map[string]uint64{}}}
	l.members = members.New(members.Config{Name: c.Name, Incarnation: l.incarnation, IsOwn: given.ours, Every: c.Every,
		Silent: c.Silent, JoinTime: c.JoinTime, Return: c.Return, Nonce: c.Nonce}, now)
	return l, nil
}

// set replaces the VIPs and the keys.
func (l *link) set(p *Plan, keys hello.Keys, mac frame.MAC) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wishes := p.Links[l.name]
	l.vips, l.serves, l.keys = wishes, p.Serves, keys
	if l.sockets != nil && mac != (frame.MAC{}) && l.sockets.mac != mac {
		l.broken = true
	}
	list := make([]members.LocalVIP, 0, len(wishes))
	for _, w := range wishes {
		list = append(list, members.LocalVIP{VIP: w.VIP, Eligible: w.Grade != announce.No, Rank: rankOf(w.Grade)})
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
	err := l.sockets.groups.set(l.vips)
	if err != nil && l.sockets.acceptsGroupsFail == nil {
		l.log.Warn("neighbour solicitations may not arrive: is IPv6 off on the interface?", "error", err)
	}
	l.sockets.acceptsGroupsFail = err
}

// end gives up the VIPs and ends the link. With returns, the others keep the VIPs for the next
// process, unless this gateway does not forward (keeps).
func (l *link) end(returns bool) {
	l.mu.Lock()
	l.keep = returns && l.keeps()
	l.mu.Unlock()
	close(l.ended)
	<-l.done
}

// keeps reports whether this gateway will continue to forward without its announcer: one that is
// held or leaves may be gone while its VIPs are kept.
func (l *link) keeps() bool {
	return l.serves && !slices.ContainsFunc(l.vips, func(w LinkVIP) bool { return w.Grade == announce.Leaving })
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
			l.incarnations.end(l.incarnation, time.Now())
			return
		case <-l.wake:
		case <-timer.C:
		}
	}
}

// step does everything that is due, and returns the latest time of the next call.
func (l *link) step(now time.Time) time.Time {
	l.follow(now)
	l.mu.Lock()
	l.stepped = now
	l.members.Tick(now)
	hellos := l.members.Hellos(now)
	gained, lost := l.members.Take()
	if l.sockets != nil { // when the link comes up it joins, and gains its VIPs again
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
		l.notify()
	}
	return next
}

// send sends frames. It stops when the link ends, or when a frame gets no space within sendTimeout:
// 400 such frames would take 8 s, without hellos. Announcements are repeated in later rounds.
func (l *link) send(list []outFrame) {
	for i, f := range list {
		select {
		case <-l.ended:
			return
		default:
		}
		switch err := l.transmit(f); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			l.failed(len(list) - i)
			return
		case err != nil:
			l.failed(1)
		}
	}
}

func (l *link) failed(frames int) {
	l.mu.Lock()
	l.count.failed += uint64(frames)
	l.mu.Unlock()
}

// due returns the due announcements of VIPs that this gateway still owns.
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

// follow opens and closes the sockets when the interface comes up and goes down.
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

// down records why the link is down.
func (l *link) down(why string) {
	l.mu.Lock()
	changed := l.why != why
	l.why = why
	l.mu.Unlock()
	if changed {
		l.log.Warn("the link is down: nothing is announced on it", "why", why)
		l.notify()
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

// open opens the sockets of a link that has come up. The gateway joins it again, because it does
// not know which members came and went meanwhile.
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
	l.notify()
	l.readers.Go(func() { l.read(s, s.arp, "ARP", l.takeARP) })
	l.readers.Go(func() { l.read(s, s.ndp, "NDP", l.takeNDP) })
	l.readers.Go(func() { l.read(s, s.hellos, "hellos", l.takeHello) })
}

// read passes the frames of a socket to take until the socket is closed or fails.
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

// goodbye asks the other members to take over the VIPs, or to keep them.
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
		for _, f := range out { // not by l.send, which stops when the link has ended
			if err := l.transmit(f); err != nil {
				l.failed(1)
			}
		}
	}
}
