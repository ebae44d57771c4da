package layer2

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/layer2/frame"
	"sluice.dev/sluice/announce/layer2/hello"
	"sluice.dev/sluice/announce/links"
	"sluice.dev/sluice/announce/view"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/trusted"
	"sluice.dev/sluice/internal/wake"
)

// Defaults. A member is dead after 300 ms: a client repeats a SYN that is lost meanwhile after a
// second. BFD with BGP has the same figures (docs/reach.md).
const (
	DefaultEvery    = 100 * time.Millisecond
	DefaultSilent   = 3
	DefaultJoinTime = 2 * time.Second
	// DefaultReturn is enough for a restarted process on a busy machine: it takes a second until
	// the others have proof of it. If the gateway ends at the same time without a goodbye, its VIPs
	// are unreachable that long.
	DefaultReturn = 3 * time.Second
	// MaxReturn is the longest Return: nothing checks meanwhile whether the gateway forwards.
	MaxReturn = time.Minute
)

// Config configures a Speaker.
type Config struct {
	Log *slog.Logger
	// Name of this member, which must be unique: the name of the node.
	Name string
	// KeyFile has the keys that members share (hello.ReadKeys). It is read again when it changes.
	// Empty: nothing is announced at layer 2.
	KeyFile string
	// All members must have the same Every, Silent, JoinTime and Return. Every is the interval of
	// hellos. A member is dead after Silent intervals without one.
	Every  time.Duration
	Silent int
	// JoinTime is how long a joining member takes no VIP, or longer if lists are long
	// (members.Config).
	JoinTime time.Duration
	// Return is how long a member's VIPs are kept for its next process if its process ended while
	// its gateway continues to forward; 0: not at all.
	Return time.Duration
	// Nonce is set by New.
	Nonce func() uint64
	// Beats, unless nil, gets the heartbeats of each link.
	Beats *heartbeat.Set
}

// Check returns the errors in the configuration.
func (c *Config) Check() error {
	var errs []error
	if c.Every < 10*time.Millisecond || c.Every > 10*time.Second {
		errs = append(errs, fmt.Errorf("the interval of hellos is %v: must be from 10ms to 10s", c.Every))
	}
	if c.Silent < 2 || c.Silent > 100 {
		errs = append(errs, fmt.Errorf("a member is dead after %d missing hellos: must be from 2 to 100", c.Silent))
	}
	if least := time.Duration(c.Silent) * c.Every; c.JoinTime < least {
		errs = append(errs, fmt.Errorf("joining takes %v: must be %v or more, so that all members are heard",
			c.JoinTime, least))
	}
	if c.Return < 0 || c.Return > MaxReturn {
		errs = append(errs, fmt.Errorf("VIPs are kept for %v: must be from 0 to %v, as nothing checks meanwhile "+
			"whether the gateway forwards", c.Return, MaxReturn))
	}
	if len(c.Name) > hello.MaxName {
		errs = append(errs, fmt.Errorf("the node's name has %d characters: must be %d at most", len(c.Name),
			hello.MaxName))
	}
	return errors.Join(errs...)
}

// Speaker announces at layer 2.
type Speaker struct {
	config       Config
	log          *slog.Logger
	changed      wake.Flag
	incarnations incarnations
	keys         hello.Keys
	refused      string // why the key file cannot be used now
	// list is interfacesOf, or a fake in tests. interfaces is its last result.
	list       func(gateway []string) ([]Interface, error)
	interfaces []Interface

	mu     sync.Mutex // guards the fields below
	links  map[string]*link
	ending map[string]bool // names of links that are ending; no new link has such a name
	plan   *Plan
	ended  sync.WaitGroup // for the goroutines that end links
}

// New returns a speaker without links.
func New(c Config) (*Speaker, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if c.Nonce == nil {
		c.Nonce = nonce
	}
	s := &Speaker{config: c, log: c.Log, changed: wake.NewFlag(), list: interfacesOf,
		links: map[string]*link{}, ending: map[string]bool{}, plan: &Plan{}}
	if c.KeyFile != "" {
		if err := s.readKeys(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func nonce() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])
}

func (s *Speaker) readKeys() error {
	text, err := trusted.Read(s.config.KeyFile)
	if err != nil {
		return err
	}
	keys, err := hello.ReadKeys(text)
	if err != nil {
		return fmt.Errorf("%s: %w", s.config.KeyFile, err)
	}
	if s.keys != nil && !s.keys.Equal(keys) {
		s.log.Info("the keys of layer 2 have changed", "keys", len(keys))
	}
	s.keys = keys
	return nil
}

// Name implements announce.Speaker.
func (s *Speaker) Name() string { return view.Layer2 }

// Changed implements announce.Speaker.
func (s *Speaker) Changed() <-chan struct{} { return s.changed }

// Apply implements announce.Speaker.
func (s *Speaker) Apply(w *announce.World) {
	if len(w.Set.Layer2) == 0 || s.config.KeyFile == "" {
		s.refused = ""
		s.replace(withoutKey(w), nil)
		return
	}
	var why string
	if err := s.readKeys(); err != nil {
		why = err.Error()
	}
	if why != "" && why != s.refused {
		s.log.Error("the keys of layer 2 cannot be read, the previous ones stay in force", "error", why)
	}
	s.refused = why
	interfaces, err := s.list(w.Interfaces)
	if err != nil && s.interfaces == nil {
		s.log.Error("interfaces of this node cannot be read, and nothing is announced at layer 2", "error", err)
		return
	}
	if err != nil { // out of descriptors, for example: VIPs must still be withdrawn
		s.log.Error("interfaces of this node cannot be read, the previous ones are used", "error", err)
		interfaces = s.interfaces
	}
	s.interfaces = interfaces
	s.replace(NewPlan(w, interfaces), interfaces)
}

// withoutKey returns a plan without links, with the reason for each VIP.
func withoutKey(w *announce.World) *Plan {
	p := &Plan{Lines: map[netip.Addr]view.Line{}}
	if len(w.Set.Layer2) == 0 {
		return p
	}
	for _, s := range w.VIPs {
		if s.Pool != nil {
			p.Lines[s.VIP] = view.Line{Speaker: view.Layer2, State: view.Not,
				Why: "there is an L2Advertisement, and layer 2 is off: set --layer2-key"}
		}
	}
	return p
}

// replace puts a plan into force. It does not wait for the network.
func (s *Speaker) replace(p *Plan, interfaces []Interface) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plan = p
	for name, l := range s.links {
		if _, wanted := p.Links[name]; !wanted {
			delete(s.links, name)
			s.end(name, l)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Links)) {
		l, begins := s.links[name], false
		if l == nil {
			if s.ending[name] {
				continue // replace is called again when the old link has ended
			}
			var err error
			if l, err = newLink(name, &s.config, &s.incarnations, s.keys, s.changed.Raise); err != nil {
				s.log.Error("a link cannot be opened; it is tried again", "interface", name, "error", err)
				continue
			}
			s.links[name], begins = l, true
		}
		var mac frame.MAC
		for i := range interfaces {
			if interfaces[i].Name == name {
				mac = interfaces[i].MAC
			}
		}
		l.set(p, s.keys, mac)
		if begins { // after set: its first hello must list the VIPs
			go l.run()
		}
	}
}

// end ends a link that is not wanted any more. The caller holds mu.
func (s *Speaker) end(name string, l *link) {
	s.ending[name] = true
	s.ended.Go(func() {
		l.end(false)
		s.mu.Lock()
		delete(s.ending, name)
		s.mu.Unlock()
		s.changed.Raise()
	})
}

// interfacesOf returns the interfaces of this node; gateway has the names of the served ones.
func interfacesOf(gateway []string) ([]Interface, error) {
	all, err := links.List()
	if err != nil {
		return nil, err
	}
	notServed := links.NotServed(all, gateway)
	list := make([]Interface, 0, len(all))
	for i := range all {
		l := &all[i]
		n := Interface{Name: l.Name, Index: l.Index, NotServed: notServed[l.Name]}
		for _, p := range l.Networks {
			n.Networks = append(n.Networks, p.Masked())
		}
		if n.Ethernet = len(l.Hardware) == len(n.MAC) && !l.Loopback; n.Ethernet {
			n.MAC = frame.MAC(l.Hardware)
		}
		list = append(list, n)
	}
	return list, nil
}

// Close implements announce.Speaker. If the gateway continues to forward, the others keep its VIPs
// for its next process; otherwise they take them over at once.
func (s *Speaker) Close() {
	s.mu.Lock()
	links := s.links
	s.links = map[string]*link{}
	s.mu.Unlock()
	for _, l := range links {
		s.ended.Go(func() { l.end(true) })
	}
	s.ended.Wait()
}
