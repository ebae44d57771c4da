package reach

import (
	"strings"
	"testing"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/host/neigh"
)

func on(link int) neigh.Way               { return neigh.Way{Kind: nexthop.OnLink, Link: link} }
func byDefault(l int) neigh.Way           { return neigh.Way{Kind: nexthop.OnLink, Link: l, Default: true} }
func facts(links string) *Facts           { return &Facts{Links: parse(links)} }
func (f *Facts) to(w ...neigh.Way) *Facts { f.Backends = w; return f }
func (f *Facts) defaults(l ...int) *Facts { f.Defaults = l; return f }
func (f *Facts) host(why string) *Facts   { f.Host = &Link{"sluice0", why}; return f }

// parse reads names; those in upper case are down.
func parse(links string) (list []Link) {
	for _, name := range strings.Fields(links) {
		l := Link{Name: strings.ToLower(name)}
		if l.Name != name {
			l.Why = "is down"
		}
		list = append(list, l)
	}
	return list
}

var nowhere neigh.Way

// TestLook: looks that follow each other, and what the last one returns.
func TestLook(t *testing.T) {
	const noClient, noBackend = "no packet reaches a client", "no packet reaches a backend"
	const noHost = "the host link is lost"
	for _, c := range []struct {
		name  string
		looks []*Facts
		want  []string // beginnings
	}{
		{"two-armed", []*Facts{facts("front back").to(on(1))}, nil},
		{"client side down", []*Facts{facts("front back").to(on(1)), facts("FRONT back").to(on(1))},
			[]string{noClient}},
		{"backend side down", []*Facts{facts("front back").to(on(1)), facts("front BACK").to(nowhere)},
			[]string{noBackend + ": interface back is down"}},
		{"backend side without carrier, its routes stay", []*Facts{facts("front back").to(on(1)),
			facts("front BACK").to(on(1))}, []string{noBackend}},
		{"backend side down, the default route is left", []*Facts{facts("front back").defaults(0).to(on(1)),
			facts("front BACK").defaults(0).to(byDefault(0))}, []string{noBackend}},
		{"and again", []*Facts{facts("front back").defaults(0).to(on(1)),
			facts("front BACK").defaults(0).to(byDefault(0)), facts("front BACK").defaults(0).to(byDefault(0))},
			[]string{noBackend}},
		{"down since the start", []*Facts{facts("front BACK").defaults(0).to(byDefault(0))}, []string{noBackend}},
		{"it is back", []*Facts{facts("front BACK").defaults(0).to(byDefault(0)),
			facts("front back").defaults(0).to(on(1))}, nil},
		{"a routing daemon finds another way", []*Facts{facts("front back").defaults(0).to(on(1)),
			facts("front BACK").defaults(0).to(on(0))}, nil},
		{"one of two to backends", []*Facts{facts("front a b").to(on(1), on(2)),
			facts("front A b").to(nowhere, on(2))}, nil},
		{"one of two to clients by a default route", []*Facts{facts("a b back").defaults(0).to(on(2)),
			facts("A b back").defaults(1).to(on(2))}, nil},
		{"both to clients", []*Facts{facts("a b back").to(on(2)), facts("A B back").to(on(2))}, []string{noClient}},
		{"a spare one", []*Facts{facts("front back spare").to(on(1)), facts("front back SPARE").to(on(1))}, nil},
		{"the only default route's", []*Facts{facts("front back spare").defaults(0).to(on(1)),
			facts("FRONT back spare").to(on(1))}, []string{noClient + ": interface front is down"}},
		{"backends behind the default route, as before", []*Facts{facts("a b").defaults(0).to(byDefault(0)),
			facts("A b").defaults(1).to(byDefault(1))}, nil},
		{"one-armed", []*Facts{facts("eth").to(on(0))}, nil},
		{"one-armed, down", []*Facts{facts("eth").to(on(0)), facts("ETH").to(nowhere)}, []string{noBackend, noClient}},
		{"no route to backends", []*Facts{facts("front back").to(nowhere)},
			[]string{noBackend + ": the kernel has no route"}},
		{"no backend at all", []*Facts{facts("front back").to()}, nil},
		{"everything down before there are backends", []*Facts{facts("FRONT BACK").to()}, []string{noClient}},
		{"backends of this node", []*Facts{facts("eth").host("").to(neigh.Way{Kind: nexthop.Kernel})}, nil},
		{"the host link", []*Facts{facts("eth").host("is not open").to(on(0))}, []string{noHost}},
		{"the host link, to backends", []*Facts{facts("eth").host("is down").to(neigh.Way{Kind: nexthop.Kernel})},
			[]string{noHost, noBackend}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var j Judge
			var got []string
			for _, f := range c.looks {
				got = j.Look(f)
			}
			if len(got) != len(c.want) {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			for i := range got {
				if !strings.HasPrefix(got[i], c.want[i]) {
					t.Errorf("got %q, want %q", got[i], c.want[i])
				}
			}
		})
	}
}
