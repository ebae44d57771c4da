package loop

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
)

// changeLog writes a line when Services or ready endpoints come or go. A tenant can change its
// objects at any rate, so there is at most one line in logInterval: what changes meanwhile is in
// the next one. Its memory is bounded: it keeps a few names, and counts the rest.
type changeLog struct {
	log                              *slog.Logger
	written                          time.Time // when the last line was
	servicesAdded, servicesRemoved   names
	services                         names // those whose endpoints changed
	endpointsAdded, endpointsRemoved names
}

// logInterval is the least time between two lines of a changeLog.
const logInterval = time.Second

// names are the first few names, and how many there are.
type names struct {
	first []string
	count int
}

const maxNames = 3

func (n *names) add(name string) {
	n.count++
	if len(n.first) < maxNames {
		n.first = append(n.first, name)
	}
}

// String returns the names as the log has them.
func (n *names) String() string {
	text := strings.Join(n.first, ", ")
	if more := n.count - len(n.first); more > 0 {
		return fmt.Sprintf("%s and %d more", text, more)
	}
	return text
}

// servedBefore has the served state, before a pass, of the objects that change in it.
type servedBefore struct {
	services []bool           // by Changes.Services
	slices   []*objects.Slice // by Changes.Slices
}

// before returns the served state of the objects that change; nil if no line would be written.
func (g *changeLog) before(c *compiler.Compiler, ch *objects.Changes) *servedBefore {
	if len(ch.Services)+len(ch.Slices) == 0 || !g.log.Enabled(context.Background(), slog.LevelInfo) {
		return nil
	}
	b := &servedBefore{}
	for _, s := range ch.Services {
		b.services = append(b.services, c.Served(s.ID.Namespace, s.ID.Name))
	}
	for _, s := range ch.Slices {
		b.slices = append(b.slices, c.Slice(s.ID))
	}
	return b
}

// after records the changes of a pass, and writes the line if it is time.
func (g *changeLog) after(c *compiler.Compiler, ch *objects.Changes, b *servedBefore, now time.Time) {
	if b == nil {
		return
	}
	for i, s := range ch.Services {
		name := s.ID.Namespace + "/" + s.ID.Name
		switch is := c.Served(s.ID.Namespace, s.ID.Name); {
		case is && !b.services[i]:
			g.servicesAdded.add(name)
		case !is && b.services[i]:
			g.servicesRemoved.add(name)
		}
	}
	g.endpoints(c, ch, b)
	g.flush(now)
}

// backend is an endpoint of a Service, with the first port of its slice.
type backend struct {
	service string
	addr    netip.AddrPort
}

// endpoints records ready endpoints that came or went. An endpoint that moved from one slice to
// another in one pass did neither.
func (g *changeLog) endpoints(c *compiler.Compiler, ch *objects.Changes, b *servedBefore) {
	count := map[backend]int{}
	var order []backend
	note := func(s *objects.Slice, by int) {
		if s == nil || s.Service == "" || len(s.Ports) == 0 || !c.Served(s.ID.Namespace, s.Service) {
			return
		}
		service := s.ID.Namespace + "/" + s.Service
		for _, e := range s.Endpoints {
			if e.Flags&services.BackendReady == 0 {
				continue
			}
			k := backend{service, netip.AddrPortFrom(e.Addr.Netip(), s.Ports[0].Port)}
			if _, known := count[k]; !known {
				order = append(order, k)
			}
			count[k] += by
		}
	}
	for i, s := range ch.Slices {
		note(b.slices[i], -1)
		note(s.Now, 1)
	}
	for _, k := range order {
		n := count[k]
		if n == 0 {
			continue
		}
		if !slices.Contains(g.services.first, k.service) && len(g.services.first) < maxNames {
			g.services.first = append(g.services.first, k.service)
		}
		if n > 0 {
			g.endpointsAdded.add(k.addr.String())
		} else {
			g.endpointsRemoved.add(k.addr.String())
		}
	}
}

// flush writes the line, if something changed and the last line is long enough ago.
func (g *changeLog) flush(now time.Time) {
	if now.Sub(g.written) < logInterval {
		return
	}
	var attrs []any
	for _, a := range []struct {
		key string
		n   *names
	}{
		{"servicesAdded", &g.servicesAdded}, {"servicesRemoved", &g.servicesRemoved},
		{"endpointsAdded", &g.endpointsAdded}, {"endpointsRemoved", &g.endpointsRemoved},
	} {
		if a.n.count > 0 {
			attrs = append(attrs, a.key, a.n.String())
		}
	}
	if len(attrs) > 0 {
		if len(g.services.first) > 0 {
			attrs = append(attrs, "endpointsOf", strings.Join(g.services.first, ", "))
		}
		g.log.Info("served objects changed", attrs...)
		g.written = now
	}
	*g = changeLog{log: g.log, written: g.written}
}

// start writes the only line about the first table.
func (g *changeLog) start(c *compiler.Compiler, ch *objects.Changes) {
	served, endpoints := 0, 0
	for _, s := range ch.Services {
		if c.Served(s.ID.Namespace, s.ID.Name) {
			served++
		}
	}
	for _, s := range ch.Slices {
		if s.Now == nil || !c.Served(s.ID.Namespace, s.Now.Service) {
			continue
		}
		for _, e := range s.Now.Endpoints {
			if e.Flags&services.BackendReady != 0 {
				endpoints++
			}
		}
	}
	g.log.Info("first table", "services", served, "readyEndpoints", endpoints)
}
