package roster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/objects"
)

const port = 9473

type nodeList = []objects.GatewayNode

// node returns the Node of gateway i, with its usual addresses.
func node(i int) objects.GatewayNode {
	return objects.GatewayNode{Name: name(i), Selected: true, Annotated: true,
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})},
		Sources:   fmt.Sprintf("198.51.100.%d,198.51.100.%d", 2*i, 2*i+1)}
}

func name(i int) string { return "gw-" + string(rune('a'+i)) }

func nodes(n int) (list []objects.GatewayNode) {
	for i := range n {
		list = append(list, node(i+1))
	}
	return list
}

// check is config.CheckMember of the defaults.
func check(m *config.GroupMember) error { return config.Default().CheckMember(m) }

func input(last []config.GroupMember, nodes []objects.GatewayNode) Input {
	return Input{Last: last, Nodes: nodes, Port: port, Check: check, Ended: func(string) bool { return false }}
}

// describe prints a list and its problems.
func describe(list []config.GroupMember, problems []objects.Problem) string {
	var b strings.Builder
	for _, m := range list {
		fmt.Fprintf(&b, "%s %s %s\n", m.Name, m.Address, strings.Trim(fmt.Sprint(m.Sources), "[]"))
	}
	for _, p := range problems {
		fmt.Fprintf(&b, "%s %s: %s %s (serving %v)\n", p.Severity, p.Object.Name, p.Field, p.Message, p.Serving)
	}
	return b.String()
}

// TestNew has a case for each rule. The list in force is that of two gateways, unless a case has
// none.
func TestNew(t *testing.T) {
	const a, b = "gw-b 192.0.2.1:9473 198.51.100.2 198.51.100.3\n", "gw-c 192.0.2.2:9473 198.51.100.4 198.51.100.5\n"
	const c = "gw-d 192.0.2.3:9473 198.51.100.6 198.51.100.7\n"
	const more = "gw-e 192.0.2.4:9473 198.51.100.8 198.51.100.9\n" +
		"gw-f 192.0.2.5:9473 198.51.100.10 198.51.100.11\n" + "gw-g 192.0.2.6:9473 198.51.100.12 198.51.100.13\n" +
		"gw-h 192.0.2.7:9473 198.51.100.14 198.51.100.15\n" + "gw-i 192.0.2.8:9473 198.51.100.16 198.51.100.17\n"
	for _, tt := range []struct {
		name    string
		first   bool // there is no list in force
		runs    bool
		change  func(n nodeList) nodeList
		ended   string
		gone    []int // gateways that were removed, and have flows here
		former  []Former
		doubted string
		list    string
		// problems are beginnings of "Node: field message", with the end after "…". SOURCES is the
		// field of the annotation.
		problems []string
	}{
		{name: "the first list", first: true, list: a + b},
		{name: "no change", list: a + b},
		{name: "no Node", change: func(nodeList) nodeList { return nil }},
		{name: "a third gateway", change: func(n nodeList) nodeList {
			return append(n, node(3))
		}, list: a + b + c},
		{name: "a deleted Node", change: func(n nodeList) nodeList { return n[1:] }, list: b},
		{name: "a Node out of service", change: func(n nodeList) nodeList {
			n[0].OutOfService = true
			return n
		}, list: b},
		{name: "a Node without the labels, whose gateway runs", change: func(n nodeList) nodeList {
			n[0].Selected = false
			return n
		}, list: a + b, problems: []string{"gw-b:  its labels do not match group.nodes any more"}},
		{name: "a Node without the labels, whose gateway has ended", ended: "gw-b",
			change: func(n nodeList) nodeList {
				n[0].Selected = false
				return n
			}, list: b},
		{name: "a Node with the labels, whose gateway has ended", ended: "gw-b", list: a + b},
		{name: "a Node without the labels, which was no member", first: true,
			change: func(n nodeList) nodeList {
				n[0].Selected = false
				return n
			}, list: b},
		{name: "other addresses", change: func(n nodeList) nodeList {
			n[0].Sources = " 198.51.100.9, 198.51.100.8 "
			return n
		}, list: "gw-b 192.0.2.1:9473 198.51.100.9 198.51.100.8\n" + b},
		{name: "a new Node without addresses", change: func(n nodeList) nodeList {
			o := node(3)
			o.Annotated, o.Sources = false, ""
			return append(n, o)
		}, list: a + b, problems: []string{"gw-d: SOURCES is missing: write " +
			"two source addresses of each family…; its gateway is no member of the group"}},
		{name: "a member's annotation is removed", change: func(n nodeList) nodeList {
			n[0].Annotated, n[0].Sources = false, ""
			return n
		}, list: a + b, problems: []string{"gw-b: SOURCES is missing…; " +
			"meanwhile its gateway is a member with 198.51.100.2 198.51.100.3 at 192.0.2.1:9473"}},
		{name: "a text that is no address", change: func(n nodeList) nodeList {
			n[0].Sources = "198.51.100.2,198.51.100"
			return append(n, node(3))
		}, list: a + b + c, problems: []string{
			`gw-b: SOURCES has "198.51.100", which is no address…at 192.0.2.1:9473`}},
		{name: "one address", change: func(n nodeList) nodeList {
			n[0].Sources = "198.51.100.2"
			return n
		}, list: a + b, problems: []string{"gw-b: SOURCES sources has " +
			"198.51.100.2, give each gateway 2 addresses of each family"}},
		{name: "an address on the host link", change: func(n nodeList) nodeList {
			n[0].Sources = "198.51.100.2,192.0.0.2"
			return n
		}, list: a + b, problems: []string{"gw-b: SOURCES sources[1] is " +
			"192.0.0.2 like the host link"}},
		{name: "no InternalIP", change: func(n nodeList) nodeList {
			n[0].Addresses = nil
			return n
		}, list: a + b, problems: []string{"gw-b: status.addresses has no InternalIP"}},
		{name: "an address of a member", change: func(n nodeList) nodeList {
			o := node(3)
			o.Sources = "198.51.100.2,198.51.100.6"
			return append(n, o)
		}, list: a + b, problems: []string{"gw-d: SOURCES has 198.51.100.2, " +
			"which Node gw-b has, too…; its gateway is no member of the group"}},
		{name: "an address that another Node reaches a gateway by", change: func(n nodeList) nodeList {
			n[0].Sources = "198.51.100.2,192.0.2.2"
			return n
		}, list: a + b, problems: []string{"gw-b: SOURCES has 192.0.2.2, which " +
			"Node gw-c has, too"}},
		{name: "two new Nodes with one address", first: true, change: func(n nodeList) nodeList {
			n[1].Sources = n[0].Sources
			return append(n, node(3))
		}, list: c, problems: []string{"gw-b: SOURCES has 198.51.100.2, which " +
			"Node gw-c has, too", "gw-c: SOURCES has 198.51.100.2, which Node " +
			"gw-b has, too"}},
		{name: "two members exchange their addresses", change: func(n nodeList) nodeList {
			n[0].Sources, n[1].Sources = n[1].Sources, n[0].Sources
			return n
		}, list: "gw-b 192.0.2.1:9473 198.51.100.4 198.51.100.5\n" + "gw-c 192.0.2.2:9473 198.51.100.2 198.51.100.3\n"},
		{name: "a member takes addresses of one that cannot give them up",
			change: func(n nodeList) nodeList {
				n[0].Sources, n[1].Sources = n[1].Sources, "none"
				return n
			}, list: a + b, problems: []string{"gw-b: SOURCES has 198.51.100.4, " +
				"which Node gw-c has, too", `gw-c: SOURCES has "none"`}},
		{name: "three members, of which the last keeps its addresses",
			change: func(n nodeList) nodeList {
				n[0].Sources, n[1].Sources = n[1].Sources, "198.51.100.6,198.51.100.7"
				o := node(3)
				o.Sources = "198.51.100.6,198.51.100.8" // a new Node that asks for an address of gw-c
				return append(n, o)
			}, list: a + b, problems: []string{"gw-b: SOURCES has 198.51.100.4",
				"gw-c: SOURCES has 198.51.100.6, which Node gw-d has, too",
				"gw-d: SOURCES has 198.51.100.6, which Node gw-c has, too"}},
		{name: "a new Node of another family", change: func(n nodeList) nodeList {
			o := node(3)
			o.Sources = "2001:db8::1,2001:db8::2"
			return append(n, o)
		}, list: a + b, problems: []string{"gw-d: SOURCES has source addresses " +
			"of IPv6, and gw-d is reached by 192.0.2.3:9473: all members have the families of gw-b (IPv4, reached by"}},
		{name: "all Nodes of another family", change: func(n nodeList) nodeList {
			n[0].Sources += ",2001:db8::1,2001:db8::2"
			n[1].Sources += ",2001:db8::3,2001:db8::4"
			return n
		}, list: "gw-b 192.0.2.1:9473 198.51.100.2 198.51.100.3 2001:db8::1 2001:db8::2\n" +
			"gw-c 192.0.2.2:9473 198.51.100.4 198.51.100.5 2001:db8::3 2001:db8::4\n"},
		{name: "all Nodes of another family, one with an address of another one",
			change: func(n nodeList) nodeList {
				n[0].Sources += ",2001:db8::1,2001:db8::2"
				n[1].Sources += ",2001:db8::3,2001:db8::2"
				return append(n, node(3))
			}, list: a + b + c, problems: []string{"gw-b: SOURCES has source " +
				"addresses of IPv4 and IPv6", "gw-c: SOURCES has source addresses"}},
		{name: "other addresses while the gateway runs", runs: true,
			change: func(n nodeList) nodeList {
				n[0].Sources = "198.51.100.9,198.51.100.8"
				return append(n, node(3))
			}, list: a + b + c, problems: []string{"gw-b: SOURCES and the Node's " +
				"InternalIP say 198.51.100.9 198.51.100.8 at 192.0.2.1:9473, which is in force when this gateway " +
				"restarts"}},
		{name: "a removed gateway returns", gone: []int{3}, change: func(n nodeList) nodeList {
			return append(n, node(3))
		}, list: a + b + c},
		{name: "a removed gateway returns with other addresses", gone: []int{3},
			change: func(n nodeList) nodeList {
				o := node(3)
				o.Sources = "198.51.100.8,198.51.100.9"
				return append(n, o)
			}, list: a + b, problems: []string{"gw-d: SOURCES has an address of " +
				"Node gw-d, which was removed from the group, and connections that it had are still open"}},
		{name: "a new gateway with an address of a removed one", gone: []int{4},
			change: func(n nodeList) nodeList {
				o := node(3)
				o.Sources = "198.51.100.6,198.51.100.8"
				return append(n, o)
			}, list: a + b, problems: []string{"gw-d: SOURCES has an address of " +
				"Node gw-e, which was removed"}},
		{name: "a new gateway with an address of one that leaves", change: func(n nodeList) nodeList {
			o := node(3)
			o.Sources = "198.51.100.3,198.51.100.8"
			return append(n[1:], o)
		}, list: b, problems: []string{"gw-d: SOURCES has an address of Node gw-b, which was removed"}},
		{name: "a new gateway with an address that a member had before",
			former: []Former{{"gw-b", []netip.Addr{netip.MustParseAddr("198.51.100.7")}}},
			change: func(n nodeList) nodeList { return append(n, node(3)) }, list: a + b,
			problems: []string{"gw-d: SOURCES has 198.51.100.7, which Node gw-b had before, and connections from it " +
				"are still open…; its gateway is no member of the group"}},
		{name: "a doubted member, and a Node with its addresses", doubted: "gw-b", change: func(n nodeList) nodeList {
			o := node(3)
			o.Sources = n[0].Sources
			return append(n, o)
		}, list: b, problems: []string{"gw-b: SOURCES has 198.51.100.2, which Node gw-d has, too…; its gateway is no " +
			"member of the group", "gw-d: SOURCES has 198.51.100.2, which Node gw-b has, too"}},
		{name: "a doubted member, and a Node too many", doubted: "gw-c", gone: []int{9, 10, 11, 12, 13, 14, 15},
			change: func(n nodeList) nodeList {
				o := node(3)
				o.Name = "gw-a" // before the others by its name
				return append([]objects.GatewayNode{o}, n...)
			}, list: a + b, problems: []string{"gw-a:  is one gateway more"}},
		{name: "a member with an address that it had before",
			former: []Former{{"gw-b", []netip.Addr{netip.MustParseAddr("198.51.100.9")}}},
			change: func(n nodeList) nodeList {
				n[0].Sources = "198.51.100.9,198.51.100.8"
				return n
			}, list: "gw-b 192.0.2.1:9473 198.51.100.9 198.51.100.8\n" + b},
		{name: "eight gateways after one that was removed", gone: []int{9}, change: func(n nodeList) nodeList {
			return append(n, nodes(8)[2:]...)
		}, list: a + b + c + more},
		{name: "eight gateways after two that were removed", gone: []int{9, 10}, change: func(n nodeList) nodeList {
			return append(n, nodes(8)[2:]...)
		}, list: a + b + c + strings.Join(strings.SplitAfter(more, "\n")[:4], ""), problems: []string{"gw-i:  is one " +
			"gateway more than the 9 that a group has, with removed ones whose connections are still open"}},
		{name: "eight gateways after two that were removed, one of which returns", gone: []int{8, 10},
			change: func(n nodeList) nodeList {
				return append(n, nodes(8)[2:]...)
			}, list: a + b + c + more},
		{name: "nine gateways", change: func(n nodeList) nodeList {
			nine := nodes(10)
			nine[9].Name = "gw-a" // before all others by its name
			return append(nine[9:], append(n, nine[2:9]...)...)
		}, list: "gw-a 192.0.2.10:9473 198.51.100.20 198.51.100.21\n" + a + b + c +
			"gw-e 192.0.2.4:9473 198.51.100.8 198.51.100.9\n" + "gw-f 192.0.2.5:9473 198.51.100.10 198.51.100.11\n" +
			"gw-g 192.0.2.6:9473 198.51.100.12 198.51.100.13\n" + "gw-h 192.0.2.7:9473 198.51.100.14 198.51.100.15\n",
			problems: []string{"gw-i:  is one gateway more than the 8 that a group has",
				"gw-j:  is one gateway more than the 8 that a group has"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := nodes(2)
			in := input(nil, nil)
			if !tt.first {
				in.Last, _ = New(input(nil, n))
			}
			if tt.change != nil {
				n = tt.change(n)
			}
			in.Nodes, in.Ended, in.Running = n, func(name string) bool { return name == tt.ended }, tt.runs
			for _, i := range tt.gone {
				gone, _ := New(input(nil, []objects.GatewayNode{node(i)}))
				in.Removed = append(in.Removed, gone...)
			}
			in.Former, in.Doubted = tt.former, tt.doubted
			list, problems := New(in)
			if got := describe(list, nil); got != tt.list {
				t.Errorf("got\n%swant\n%s", got, tt.list)
			}
			if len(problems) != len(tt.problems) {
				t.Fatalf("problems\n%swant %q", describe(nil, problems), tt.problems)
			}
			for i, p := range problems {
				text := fmt.Sprintf("%s: %s %s", p.Object.Name, p.Field, p.Message)
				want := strings.Replace(tt.problems[i], "SOURCES", "metadata.annotations[sluice.dev/group-sources]", 1)
				start, end, _ := strings.Cut(want, "…")
				if !strings.HasPrefix(text, start) || !strings.HasSuffix(text, end) {
					t.Errorf("problem %q, want %q", text, want)
				}
				of := slices.ContainsFunc(list, func(m config.GroupMember) bool { return m.Name == p.Object.Name })
				if p.Object.Kind != objects.KindNode || p.Serving != of {
					t.Errorf("problem %+v, member %v", p, of)
				}
			}
		})
	}
}

// TestOrder: Nodes in any order give the same list and problems.
func TestOrder(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var last []config.GroupMember
	for range 300 {
		var n []objects.GatewayNode
		for i := range 1 + r.IntN(11) {
			n = append(n, anyNode(r, i+1))
		}
		want := describe(New(input(last, n)))
		for range 5 {
			r.Shuffle(len(n), func(i, j int) { n[i], n[j] = n[j], n[i] })
			if got := describe(New(input(last, n))); got != want {
				t.Fatalf("in another order\n%swant\n%s", got, want)
			}
		}
		next, _ := New(input(last, n))
		valid(t, next)
		again := input(next, n)
		again.Removed = (&Lists{Members: last}).Next(next).Removed // they have flows here
		if again, _ := New(again); describe(again, nil) != describe(next, nil) {
			t.Fatalf("the same Nodes again give\n%safter\n%s", describe(again, nil), describe(next, nil))
		}
		last = next
	}
}

// anyNode returns a Node whose addresses may be another one's, or be malformed.
func anyNode(r *rand.Rand, i int) objects.GatewayNode {
	n := node(i)
	switch r.IntN(8) {
	case 0:
		n.Sources = node(1 + r.IntN(11)).Sources
	case 1:
		n.Sources += ",2001:db8::1"
	case 2:
		n.Sources += fmt.Sprintf(",2001:db8::%x,2001:db8:1::%x", i, i)
	case 3:
		n.Selected = false
	case 4:
		n.OutOfService = r.IntN(2) == 0
	case 5:
		n.Annotated = false
	}
	return n
}

// valid checks that a list could be group.members.
func valid(t *testing.T, list []config.GroupMember) {
	t.Helper()
	if len(list) > config.MaxGroupMembers {
		t.Fatalf("%d members", len(list))
	}
	used := map[netip.Addr]string{}
	for _, m := range list {
		for _, a := range append(slices.Clone(m.Sources), m.Address.Addr()) {
			if other, twice := used[a]; twice {
				t.Fatalf("%s and %s have %s:\n%s", other, m.Name, a, describe(list, nil))
			}
			used[a] = m.Name
		}
		if m.Families() != list[0].Families() || m.Families() == "" {
			t.Fatalf("families differ:\n%s", describe(list, nil))
		}
	}
}

// TestEvents: events of Nodes without mistakes give the same list in any order, also if a list is
// made after each.
func TestEvents(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	want := describe(New(input(nil, nodes(8))))
	for range 50 {
		var last []config.GroupMember
		var n []objects.GatewayNode
		for _, i := range r.Perm(8) {
			n = append(n, node(i+1))
			last, _ = New(input(last, n))
		}
		if got := describe(last, nil); got != want {
			t.Fatalf("got\n%swant\n%s", got, want)
		}
	}
}

// TestNext: a member that leaves is a removed one until it returns.
func TestNext(t *testing.T) {
	all, _ := New(input(nil, nodes(4)))
	l := Lists{Members: all}
	for _, c := range []struct {
		members []config.GroupMember
		removed string
	}{
		{all, ""}, {all[:3], "gw-e"}, {all[1:3], "gw-b gw-e"}, {all[1:], "gw-b"}, {all, ""},
	} {
		l = l.Next(c.members)
		var names []string
		for _, m := range l.Removed {
			names = append(names, m.Name)
		}
		if got := strings.Join(names, " "); got != c.removed || len(l.Members) != len(c.members) {
			t.Errorf("%d members, removed %q, want %d and %q", len(l.Members), got, len(c.members), c.removed)
		}
	}
}

// TestFormer: the addresses that a member had before are noted until another one has them, or none
// of their flows is left.
func TestFormer(t *testing.T) {
	of := func(sources ...string) (list []config.GroupMember) {
		var n []objects.GatewayNode
		for i, s := range sources {
			o := node(i + 1)
			o.Sources = s
			n = append(n, o)
		}
		list, _ = New(input(nil, n))
		return list
	}
	const first, second, third = "198.51.100.2,198.51.100.3", "198.51.100.4,198.51.100.5", "198.51.100.6,198.51.100.7"
	l := Lists{Members: of(first, second)}
	for _, c := range []struct {
		members []config.GroupMember
		want    string
	}{
		{of(first, second), "[]"},
		{of(first, third), "[{gw-c [198.51.100.4 198.51.100.5]}]"},
		{of(first, third), "[{gw-c [198.51.100.4 198.51.100.5]}]"},
		{of("198.51.100.5,198.51.100.8", third), "[{gw-c [198.51.100.4]} {gw-b [198.51.100.2 198.51.100.3]}]"},
		{of(first, "198.51.100.4,198.51.100.9"),
			"[{gw-b [198.51.100.5 198.51.100.8]} {gw-c [198.51.100.6 198.51.100.7]}]"},
	} {
		if l = l.Next(c.members); fmt.Sprint(l.Former) != c.want {
			t.Errorf("former addresses %v, want %s", l.Former, c.want)
		}
	}
	l.Former = l.FormerExcept(func(a netip.Addr) bool { return a.As4()[3] != 7 })
	if got := fmt.Sprint(l.Former); got != "[{gw-c [198.51.100.7]}]" {
		t.Errorf("after the end of other flows: %s", got)
	}
}

// TestFile: lists are read as they were saved; without a file there are none.
func TestFile(t *testing.T) {
	f := In(filepath.Join(t.TempDir(), "missing")) // Save makes it
	if got, err := f.Load(); len(got.Members)+len(got.Removed) != 0 || err != nil {
		t.Errorf("without a file: %v, %v", got, err)
	}
	want, _ := New(input(nil, nodes(3)))
	lists := Lists{Members: want[:2], Removed: want[2:], Former: []Former{{"gw-b", want[0].Sources}}}
	if err := f.Save(lists); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Load(); err != nil || describe(got.Members, nil) != describe(lists.Members, nil) ||
		describe(got.Removed, nil) != describe(lists.Removed, nil) ||
		fmt.Sprint(got.Former) != fmt.Sprint(lists.Former) {
		t.Errorf("%v\n%+v\nwant\n%+v", err, got, lists)
	}
	if err := In(filepath.Join("/proc", "none")).Save(lists); err == nil {
		t.Error("saved where no file can be")
	}
}

// TestCheck: the reason of the other settings is that of the problem.
func TestCheck(t *testing.T) {
	in := input(nil, nodes(1))
	in.Check = func(*config.GroupMember) error { return errors.New("sources[0] is of a pool") }
	if list, problems := New(in); len(list) != 0 || len(problems) != 1 ||
		!strings.HasPrefix(problems[0].Message, "sources[0] is of a pool; its gateway is no member") {
		t.Errorf("got %s", describe(list, problems))
	}
}
