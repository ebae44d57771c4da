package daemon

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/announce/pulse"
	"sluice.dev/sluice/config"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/gateway/members"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
)

// TestSourceConditions: the states of source addresses, of one family after the other, and what is
// said of them.
func TestSourceConditions(t *testing.T) {
	for _, c := range []struct {
		states string // of IPv4 and IPv6
		want   string // levels and beginnings
	}{
		{"open spare open spare", ""},
		{"spare open", ""},
		{"closed open", "warn source address 198.51.100.0 is closed, and 198.51.100.1 is in use"},
		{"open closed", "warn source address 198.51.100.1 is closed, and 198.51.100.0 is in use"},
		{"opening closed", "warn source address 198.51.100.1 is closed, and 198.51.100.0 is in use"},
		{"closed closed", "fail no source address is open (198.51.100.0 and 198.51.100.1 are closed)"},
		{"open spare closed closed", "fail no source address is open (2001:db8::2 and 2001:db8::3 are closed)"},
	} {
		v := &status.GroupView{}
		for i, state := range strings.Fields(c.states) {
			a := netip.AddrFrom4([4]byte{198, 51, 100, byte(i)})
			if i > 1 {
				a = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: byte(i)})
			}
			v.Sources = append(v.Sources, status.GroupSourceView{Address: a, State: state})
		}
		got := ""
		for _, o := range sourceConditions(v) {
			got += o.Level + " " + o.Detail
		}
		if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: got %q, want %q", c.states, got, c.want)
		}
	}
}

// TestMemberView: another gateway has all flows only if it has refused none.
func TestMemberView(t *testing.T) {
	for _, c := range []struct {
		m     members.Member
		ended string
		want  status.GroupMemberView
	}{
		{members.Member{}, "refused", status.GroupMemberView{Error: "refused"}},
		{members.Member{HasOurs: true, HasIts: true}, "",
			status.GroupMemberView{HasOurFlows: true, WeHaveItsFlows: true}},
		{members.Member{HasOurs: true, HasIts: true, Refused: 3}, "", status.GroupMemberView{WeHaveItsFlows: true,
			Error: "it has refused flows of this gateway: 3, for lack of room or for flows of its own"}},
		{members.Member{HasOurs: true, HasIts: true, RefusedIts: 4}, "", status.GroupMemberView{HasOurFlows: true,
			Error: "this gateway has refused its flows: 4, for lack of room or for flows of its own"}},
	} {
		if got := memberView(&c.m, c.ended); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.m, got, c.want)
		}
	}
}

// TestKeepsAll: a gateway whose table lacks flows of the previous process must not give their ports
// to others.
func TestKeepsAll(t *testing.T) {
	for _, c := range []struct {
		r    flowtable.Recovery
		want bool
	}{
		{flowtable.Recovery{Recovered: 3}, true},
		{flowtable.Recovery{Recovered: 3, Moved: true}, true},
		{flowtable.Recovery{Recovered: 3, Kept: true}, true},
		{flowtable.Recovery{Recovered: 3, Moved: true, Lost: 1}, false},
		{flowtable.Recovery{Recovered: 3, Torn: 1}, true}, // half-written: the process was killed
		{flowtable.Recovery{Recovered: 3, Torn: 2, Damaged: 1}, false},
		{flowtable.Recovery{Fresh: true}, false},
		{flowtable.Recovery{Recovered: 3, Unnoted: true}, false},
		{flowtable.Recovery{Unread: true}, false},
	} {
		if got := keepsAll(&c.r); got != c.want {
			t.Errorf("%+v: %t, want %t", c.r, got, c.want)
		}
	}
}

// TestKeepsAllOnADisk: after a reboot, which a table on a disk outlives, its flows are from the
// future and dropped, and other gateways have copies. A new table replaces one that may have had
// flows, until that is noted.
func TestKeepsAllOnADisk(t *testing.T) {
	const booted, rebooted = flowtable.Time(30 * 24 * time.Hour), flowtable.Time(time.Minute)
	c := flowtable.Config{IPv4Flows: 64, Timeouts: flowtable.DefaultTimeouts(), Group: true}
	path := filepath.Join(t.TempDir(), "flows")
	open := func(at flowtable.Time) *flowtable.File {
		f, err := flowtable.OpenFile(path, c, at, flowtable.ResizeFit)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	f := open(booted)
	h, err := f.Table.Register()
	if err != nil {
		t.Fatal(err)
	}
	at := func(last byte) header.Addr { return header.AddrFrom4([4]byte{192, 0, 2, last}) }
	h.Enter(booted)
	if _, s := h.Create(booted, &flowtable.NewFlow{Client: header.Tuple{Src: at(1), SrcPort: 1, Dst: at(2), DstPort: 80,
		Proto: header.ProtoTCP}, Backend: at(3), BackendPort: 80, Source: at(4), SourcePort: 1,
		Tracked: true}); s != flowtable.Created {
		t.Fatal(s)
	}
	h.Leave()
	for _, o := range []struct {
		at   flowtable.Time
		want bool
	}{{booted, false}, {booted + 1e9, true}, {rebooted, false}} { // of the first one nothing was noted
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		f = open(o.at)
		if got := keepsAll(&f.Recovery); got != o.want {
			t.Errorf("at %v: %t, want %t: %+v", time.Duration(o.at), got, o.want, f.Recovery)
		}
		f.Table.NoteLosses()
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestConnectionsBesideCopies: a drain waits for this gateway's connections, whatever copies there
// are.
func TestConnectionsBesideCopies(t *testing.T) {
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 64, Timeouts: flowtable.DefaultTimeouts(), Group: true})
	if err != nil {
		t.Fatal(err)
	}
	h, err := table.Register()
	if err != nil {
		t.Fatal(err)
	}
	at := func(last byte) header.Addr { return header.AddrFrom4([4]byte{192, 0, 2, last}) }
	client := func(port uint16, proto uint8) header.Tuple {
		return header.Tuple{Src: at(1), SrcPort: port, Dst: at(2), DstPort: 80, Proto: proto}
	}
	h.Enter(1e9)
	if _, s := h.Create(1e9, &flowtable.NewFlow{Client: client(1, header.ProtoTCP), Backend: at(3), BackendPort: 80,
		Source: at(4), SourcePort: 1, Tracked: true}); s != flowtable.Created {
		t.Fatal(s)
	}
	for i, state := range []flowtable.State{flowtable.UDPReplied, flowtable.TimeWaitClient, flowtable.Established} {
		r := conn.Record{State: state, Client: client(uint16(2+i), header.ProtoTCP)}
		if state.UDP() {
			r.Client.Proto = header.ProtoUDP
		}
		r.Reply = header.Tuple{Src: at(3), SrcPort: 80, Dst: at(5), DstPort: uint16(1 + i), Proto: r.Client.Proto}
		if _, s := h.Copy(1e9, 1, &r); s != flowtable.Created {
			t.Fatal(s)
		}
	}
	h.Leave()
	if n := (&flowState{file: &flowtable.File{Table: table}}).connections(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// TestFormerSources: source addresses that this gateway had in a group are announced as long as
// flows have them, unless a gateway of the group has them now.
func TestFormerSources(t *testing.T) {
	list := func(texts ...string) (of []netip.Addr) {
		for _, a := range texts {
			of = append(of, netip.MustParseAddr(a))
		}
		return of
	}
	c := &config.Configuration{SNAT: config.SNAT{Addresses: list("198.51.100.4")}}
	c.Group.Members = []config.GroupMember{{Name: "other", Sources: list("198.51.100.3")}}
	former := list("198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4")
	group := []pulse.Source{{Address: netip.MustParseAddr("198.51.100.3"), Rank: 1}}
	group = append(group, pulse.Source{Address: netip.MustParseAddr("198.51.100.6"), Rank: 9}) // of a removed gateway
	listed := list("198.51.100.6")
	former = append(former, listed...)
	used := list("198.51.100.2", "198.51.100.3", "198.51.100.4", "198.51.100.5")
	for _, tt := range []struct {
		used *[]netip.Addr
		want []pulse.Source
	}{
		{nil, []pulse.Source{{Address: former[0]}, {Address: former[1]}, group[0], group[1]}},
		{&used, []pulse.Source{{Address: former[1]}, group[0], group[1]}},
		{new([]netip.Addr), group},
		{&listed, group},
	} {
		if got := withFormer(group, former, c, tt.used); !slices.Equal(got, tt.want) {
			t.Errorf("flows have %v: %v, want %v", tt.used, got, tt.want)
		}
	}
}

// TestEndedSources: former source addresses are forgotten when no flow has them, or when another
// gateway has them. Flows are counted only if nothing else decides.
func TestEndedSources(t *testing.T) {
	at := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, last}) }
	c := &config.Configuration{SNAT: config.SNAT{Addresses: []netip.Addr{at(1)}}}
	c.Group.Members = []config.GroupMember{{Name: "other", Sources: []netip.Addr{at(2)}}}
	var counted []netip.Addr
	kept, gone := endedSources([]netip.Addr{at(1), at(2), at(3), at(4), at(5)}, c, []netip.Addr{at(3)},
		func(a netip.Addr) int {
			counted = append(counted, a)
			return map[netip.Addr]int{at(4): 1}[a]
		})
	if !slices.Equal(kept, []netip.Addr{at(1), at(3), at(4)}) || !slices.Equal(gone, []netip.Addr{at(2), at(5)}) ||
		!slices.Equal(counted, []netip.Addr{at(4), at(5)}) {
		t.Errorf("kept %v, gone %v, counted %v", kept, gone, counted)
	}
}

// TestFormerWithoutHostLink: the source addresses that only flows have are known without a host
// link, too.
func TestFormerWithoutHostLink(t *testing.T) {
	a := netip.MustParseAddr("198.51.100.1")
	live := []netip.Addr{a}
	s := &settings{inForce: config.Default()}
	h := &hostSide{settings: s, users: hostUsers{sources: func() []netip.Addr { return live }}}
	h.applySources()
	if got := h.former.Load(); got == nil || !slices.Equal(*got, live) {
		t.Fatalf("former are %v, want %v", got, live)
	}
	live = nil
	h.watchSources()
	if got := h.former.Load(); len(*got) > 0 {
		t.Errorf("after the last flow former are %v", *got)
	}
}
