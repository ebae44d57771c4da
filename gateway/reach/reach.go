// Package reach decides whether packets can reach backends and clients, for health checks.
//
// The configuration does not give the purpose of an interface. Its roles follow from the routes
// while packets can pass it, and do not change while none can, because the kernel then removes its
// routes:
//
//	backend side   the routes to backends lead to it
//	client side    a default route leads to it; without default routes: every interface that is not
//	               of the backend side; if that leaves none, as with one interface: any interface
//	host link      at most one; it must work if it is configured
//
// A side is lost when packets can pass none of its interfaces. If only one of several is lost, a
// condition reports it. When the interface to the backends goes down, the kernel would send their
// packets by a default route to the clients' router. So a default route does not count as a way to
// backends while an interface is lost that had a better route, or whose role is unknown.
package reach

import (
	"slices"
	"strings"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/host/neigh"
)

// Link is an interface of the configuration, or the host link.
type Link struct {
	Name string
	Why  string // why no packet can pass it; empty if packets can
}

// Facts are the input of Look.
type Facts struct {
	Links    []Link      // in the order of the configuration
	Host     *Link       // nil if there is none
	Backends []neigh.Way // to backends that may get new flows, each way once; empty if there are none
	Defaults []int       // links that default routes lead to
}

// role is the role of a link when packets could last pass it.
type role struct {
	seen    bool // packets could pass it at some time
	client  bool // a default route led to it
	backend bool // routes to backends led to it
	better  bool // and one of these was no default route
}

// Judge remembers the links' roles. The zero Judge knows none. It is not safe for concurrent use.
type Judge struct{ roles []role }

// NoRoute is the result of Look if packets can pass all interfaces and no route leads to a backend.
// It may affect all gateways at once, for example when the routing daemon has failed.
const NoRoute = noBackend + noRoute

const noBackend, noRoute = "no packet reaches a backend: ", "the kernel has no route to any"

// Look returns why packets cannot reach backends or clients; nothing if they can. The ways must
// have been read before the links: otherwise a link that passes packets could already have lost its
// routes.
func (j *Judge) Look(f *Facts) (why []string) {
	j.learn(f)
	if f.Host != nil && f.Host.Why != "" {
		why = append(why, "the host link is lost: interface "+f.Host.Name+" "+f.Host.Why)
	}
	backend := func(i int) bool { return j.roles[i].backend || !j.roles[i].seen }
	if len(f.Backends) > 0 && !j.reachesBackends(f) {
		why = append(why, noBackend+blocked(f, backend, noRoute))
	}
	if client := j.clientSide(); !passes(f, client) {
		why = append(why, "no packet reaches a client: "+blocked(f, client, "no interface passes packets"))
	}
	return why
}

// learn updates the roles of the links that packets can pass.
func (j *Judge) learn(f *Facts) {
	if j.roles == nil {
		j.roles = make([]role, len(f.Links))
	}
	shaky := j.defaultIsShaky(f)
	for i := range f.Links {
		if f.Links[i].Why != "" {
			continue
		}
		old, r := j.roles[i], role{seen: true, client: slices.Contains(f.Defaults, i)}
		for _, w := range f.Backends {
			if w.Kind == nexthop.OnLink && w.Link == i && (!w.Default || !shaky || old.backend) {
				r.backend, r.better = true, r.better || !w.Default
			}
		}
		if len(f.Backends) == 0 {
			r.backend, r.better = old.backend, old.better
		}
		j.roles[i] = r
	}
}

// defaultIsShaky reports whether a default route may have replaced better ways to backends.
func (j *Judge) defaultIsShaky(f *Facts) bool {
	for i, l := range f.Links {
		if l.Why != "" && (j.roles[i].better || !j.roles[i].seen) {
			return true
		}
	}
	return false
}

func (j *Judge) reachesBackends(f *Facts) bool {
	return slices.ContainsFunc(f.Backends, func(w neigh.Way) bool { return j.Lost(f, w) == "" })
}

// Lost returns why packets cannot reach a backend by a way, after Look with the same facts; empty
// if they can.
func (j *Judge) Lost(f *Facts, w neigh.Way) (why string) {
	switch w.Kind {
	case nexthop.OnLink:
		l := &f.Links[w.Link]
		switch {
		case l.Why != "":
			return "interface " + l.Name + " " + l.Why
		case !j.roles[w.Link].backend:
			return "only a default route is left, by interface " + l.Name
		}
		return ""
	case nexthop.Kernel:
		switch {
		case f.Host == nil:
			return "there is no host link"
		case f.Host.Why != "":
			return "the host link, interface " + f.Host.Name + ", " + f.Host.Why
		}
		return ""
	}
	return "the kernel has no route"
}

// clientSide returns a function that reports whether a link is of the client side.
func (j *Judge) clientSide() func(i int) bool {
	switch {
	case slices.ContainsFunc(j.roles, func(r role) bool { return r.client }):
		return func(i int) bool { return j.roles[i].client }
	case slices.ContainsFunc(j.roles, func(r role) bool { return !r.backend }):
		return func(i int) bool { return !j.roles[i].backend }
	}
	return func(int) bool { return true }
}

// passes reports whether packets can pass a link of a side.
func passes(f *Facts, of func(int) bool) bool {
	for i, l := range f.Links {
		if of(i) && l.Why == "" {
			return true
		}
	}
	return false
}

// blocked lists the links of a side that no packet can pass, or returns otherwise if there are
// none.
func blocked(f *Facts, of func(int) bool, otherwise string) string {
	var list []string
	for i, l := range f.Links {
		if of(i) && l.Why != "" {
			list = append(list, "interface "+l.Name+" "+l.Why)
		}
	}
	if len(list) == 0 {
		return otherwise
	}
	return strings.Join(list, ", ")
}
