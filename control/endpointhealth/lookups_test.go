package endpointhealth_test

import (
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/endpointhealth"
)

// link is a simulated link: the kernel tries to resolve an address for 3 s, unless a host has it.
type link struct {
	*sim
	hosts, known map[netip.Addr]bool
	asked        map[netip.Addr]time.Time // when the kernel began to ask
	most         int                      // of asked
}

const mostUnresolved = 192

func newLink(t *testing.T) *link {
	l := &link{hosts: map[netip.Addr]bool{}, known: map[netip.Addr]bool{}, asked: map[netip.Addr]time.Time{}}
	l.sim = newSim(t, endpointhealth.Config{ChecksPerSecond: 4000, NamespaceShare: 50, MostUnresolved: mostUnresolved,
		Unresolved: func(a netip.Addr) bool { return !l.known[a] }})
	l.answer = func(c endpointhealth.Start) (endpointhealth.Result, time.Duration) {
		a := c.Target.Addr()
		if l.known[a] = l.hosts[a]; l.known[a] {
			return passes, time.Millisecond
		}
		for k, since := range l.asked {
			if l.now.Sub(since) >= 3*time.Second {
				delete(l.asked, k)
			}
		}
		if _, asks := l.asked[a]; !asks {
			l.asked[a] = l.now
		}
		l.most = max(l.most, len(l.asked))
		return silence(c)
	}
	return l
}

// TestDeadEndpointsOfALink: endpoints that no host of a link has leave room in the kernel's
// neighbour table, however many a namespace invents, and delay neither other namespaces nor the
// namespace's own endpoints on existing hosts. Each endpoint is checked.
func TestDeadEndpointsOfALink(t *testing.T) {
	l := newLink(t)
	dead := portOf(t, "hostile", "tcp interval=1s", 1800)
	own := portOf(t, "hostile", "tcp interval=5s", 50)
	own.Service = "own"
	own.Endpoints = offset(own.Endpoints, netip.AddrFrom4([4]byte{10, 1, 0, 0}))
	honest := portOf(t, "honest", "tcp interval=2s", 50)
	honest.Endpoints = offset(honest.Endpoints, netip.AddrFrom4([4]byte{10, 2, 0, 0}))
	for _, p := range []*compiler.CheckedPort{own, honest} {
		for _, e := range p.Endpoints {
			l.hosts[e.Addr()] = true
		}
	}
	last, checked, slowest := map[netip.Addr]time.Time{}, map[netip.Addr]bool{}, map[string]time.Duration{}
	answer := l.answer
	l.answer = func(c endpointhealth.Start) (endpointhealth.Result, time.Duration) {
		a := c.Target.Addr()
		if at, ok := last[a]; ok && l.hosts[a] {
			slowest[c.Namespace] = max(slowest[c.Namespace], l.now.Sub(at))
		}
		last[a], checked[a] = l.now, true
		return answer(c)
	}
	l.SetPorts([]*compiler.CheckedPort{dead, own}, l.now)
	l.run(20*time.Second, nil)
	l.SetPorts([]*compiler.CheckedPort{dead, own, honest}, l.now)
	l.run(2*time.Minute, nil)
	t.Logf("the kernel resolves %d addresses at a time; %d were checked, the others each %v at most", l.most,
		len(checked), slowest)
	if l.most == 0 || l.most > mostUnresolved {
		t.Errorf("the kernel resolves %d addresses at a time, want %d at most", l.most, mostUnresolved)
	}
	if len(checked) != 1900 {
		t.Errorf("%d endpoints were checked, want all 1,900", len(checked))
	}
	if slowest["honest"] > 2400*time.Millisecond || slowest["hostile"] > 5700*time.Millisecond {
		t.Errorf("endpoints that are there were checked each %v at most", slowest)
	}
	if late := l.Late(l.now); len(late) != 1 || late[0].Service != "web" || late[0].Namespace != "hostile" {
		t.Errorf("late are %v", late)
	}
	if l.Counts().Down == 0 {
		t.Error("no endpoint is down")
	}
}

// TestEntryGoesWhileItsEndpointWaits: an endpoint whose address the kernel forgets while its check
// waits does not keep the others of its namespace waiting.
func TestEntryGoesWhileItsEndpointWaits(t *testing.T) {
	known, began := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	s := newSim(t, endpointhealth.Config{ChecksPerSecond: 4000, MostUnderWay: 2, MostUnresolved: 2,
		Unresolved: func(a netip.Addr) bool { return !known[a] }})
	var ports []*compiler.CheckedPort
	for i, check := range []string{"tcp interval=10s timeout=10s", "tcp interval=1s", "tcp interval=1s"} {
		p := portOf(t, "default", check, 1)
		p.Service = string(rune('a' + i))
		p.Endpoints = offset(p.Endpoints, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
		ports = append(ports, p)
	}
	dead, forgotten, good := ports[0].Endpoints[0].Addr(), ports[1].Endpoints[0].Addr(), ports[2].Endpoints[0].Addr()
	known[forgotten], known[good] = true, true
	s.answer = func(c endpointhealth.Start) (endpointhealth.Result, time.Duration) {
		began[c.Target.Addr()] = true
		if c.Target.Addr() == dead {
			return silence(c)
		}
		return passes, time.Millisecond
	}
	s.SetPorts(ports[:1], s.now)
	for !began[dead] { // one check at a time, and one lookup
		s.run(10*time.Millisecond, nil)
	}
	s.SetPorts(ports[:2], s.now)
	s.run(2*time.Second, nil)
	s.SetPorts(ports, s.now)
	s.run(4*time.Second, nil)
	if s.Counts().Waiting != 2 {
		t.Fatalf("%d endpoints wait, want 2", s.Counts().Waiting)
	}
	known[forgotten] = false
	s.run(5*time.Second, nil) // the check ends, its lookup does not yet
	if !began[good] || began[forgotten] {
		t.Errorf("checks of %v began, want one of %v", began, good)
	}
}

// TestDeadNode: a node that has failed takes the room of one address, with all of its ports.
func TestDeadNode(t *testing.T) {
	l := newLink(t)
	p := portOf(t, "default", "tcp interval=1s", 1)
	p.Endpoints = nil
	for port := range uint16(800) {
		p.Endpoints = append(p.Endpoints, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), 1+port))
	}
	l.SetPorts([]*compiler.CheckedPort{p}, l.now)
	l.run(6*time.Second, nil)
	if c := l.Counts(); c.Down != 800 || len(l.Late(l.now)) > 0 {
		t.Errorf("%d are down, late are %v", c.Down, l.Late(l.now))
	}
}

// TestNewEndpointsOfALink: 1,000 new endpoints that answer wait for no room.
func TestNewEndpointsOfALink(t *testing.T) {
	l := newLink(t)
	p := portOf(t, "default", "tcp interval=1s", 1000)
	for _, e := range p.Endpoints {
		l.hosts[e.Addr()] = true
	}
	l.SetPorts([]*compiler.CheckedPort{p}, l.now)
	l.run(10*time.Second, nil)
	if c := l.Counts(); c.Checks < 9000 || c.Down > 0 || c.Waiting > 0 {
		t.Errorf("%+v, want 1,000 checks a second", c)
	}
}

// offset moves endpoints to addresses from first on.
func offset(list []netip.AddrPort, first netip.Addr) (out []netip.AddrPort) {
	for _, e := range list {
		out = append(out, netip.AddrPortFrom(first, e.Port()))
		first = first.Next()
	}
	return out
}
