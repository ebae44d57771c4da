package members

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/announce/pulse"
	"sluice.dev/sluice/config"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/gateway/sources"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/certs"
)

// lab is a group of gateways on loopback addresses, over TLS.
type lab struct {
	t        *testing.T
	group    config.Group
	gateways []*gateway
}

// gateway is one of them. A start after the first one is one after a loss of memory.
type gateway struct {
	*Members
	l         *lab
	index     int
	dir       string
	taken     bool                 // the next start is one by a hand-over
	keepAfter time.Duration        // 0: an hour
	gone      []config.GroupMember // that the processes before have removed
	log       slog.Handler         // nil: discards
	file      *flowtable.File
	handle    *flowtable.Handle
	stop      func()
	opened    chan struct{}
}

func newLab(t *testing.T, gateways int) *lab {
	t.Helper()
	l := &lab{t: t}
	authority, err := certs.New()
	must(t, err)
	for i := range gateways {
		g := &gateway{l: l, index: i, dir: t.TempDir(), opened: make(chan struct{}, 16)}
		l.gateways = append(l.gateways, g)
		m := config.GroupMember{Name: fmt.Sprintf("gw-%c", 'a'+i),
			Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 7, byte(1 + i)}), 9473)}
		for j := range 2 {
			m.Sources = append(m.Sources, netip.AddrFrom4([4]byte{198, 51, 100, byte(10*i + j)}))
		}
		l.group.Members = append(l.group.Members, m)
		must(t, authority.Write(g.dir, m.Name))
	}
	return l
}

// start starts a gateway. kept: its flow table is that of the process before.
func (g *gateway) start(kept bool) {
	t := g.l.t
	t.Helper()
	state := filepath.Join(g.dir, "state")
	if !kept {
		must(t, os.RemoveAll(state))
	}
	must(t, os.MkdirAll(state, 0o700))
	var err error
	g.file, err = flowtable.OpenFile(filepath.Join(state, "flows"), flowtable.Config{IPv4Flows: 256, HalfOpen: 256,
		Timeouts: flowtable.DefaultTimeouts(), Group: true}, flowtable.Time(boottime.Nanos()), flowtable.ResizeFit)
	must(t, err)
	c := g.l.group
	c.StateDir = filepath.Join(g.dir, "disk")
	c.TLS = config.GroupTLS{CertFile: filepath.Join(g.dir, certs.CertFile),
		KeyFile: filepath.Join(g.dir, certs.KeyFile), CAFile: filepath.Join(g.dir, certs.CAFile)}
	if g.log == nil {
		g.log = slog.DiscardHandler
	}
	g.Members, err = New(Config{Log: slog.New(g.log), Group: &c, Self: fmt.Sprintf("gw-%c", 'a'+g.index),
		Removed:  g.gone,
		StateDir: state, Kept: kept, Taken: g.taken, Table: g.file.Table, Workers: 1,
		KeepAfter: cmp.Or(g.keepAfter, time.Hour),
		RealTime:  func() error { return nil },
		InUse:     func(netip.Addr) int { return 0 }, Opened: func() { g.opened <- struct{}{} }})
	must(t, err)
	if g.taken {
		g.Recover()
	}
	g.handle, err = g.file.Table.Register()
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { g.Run(ctx) })
	g.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		g.Close()
		g.handle.Close()
		must(t, g.file.Close())
	})
	t.Cleanup(g.stop)
}

// flow makes a flow of this gateway whose backend has answered.
func (g *gateway) flow(port uint16) {
	t := g.l.t
	t.Helper()
	source, open := g.OpenAddress(false)
	if !open {
		t.Fatalf("gateway %d has no open address", g.index)
	}
	client := header.Tuple{Src: header.AddrFrom4([4]byte{203, 0, 113, 1}),
		Dst: header.AddrFrom4([4]byte{203, 0, 113, 9}), SrcPort: port, DstPort: 80, Proto: header.ProtoTCP}
	now := flowtable.Time(boottime.Nanos())
	g.handle.Enter(now)
	r, s := g.handle.Create(now, &flowtable.NewFlow{Client: client, Backend: header.AddrFrom4([4]byte{10, 0, 0, 1}),
		BackendPort: 8080, Source: header.AddrFrom(source), SourcePort: port, Tracked: true})
	if s == flowtable.Created {
		g.handle.Observe(r, flowtable.ReplySide, flowtable.Segment{Flags: header.TCPSYN | header.TCPACK}, now)
	}
	g.handle.Publish()
	g.handle.Leave()
	if s != flowtable.Created {
		t.Fatalf("gateway %d: a flow: %v", g.index, s)
	}
	g.Board().Changed()
}

// until waits for a view of a gateway.
func (g *gateway) until(what string, is func(v *View) bool) {
	t := g.l.t
	t.Helper()
	end := time.Now().Add(20 * time.Second)
	for !is(g.View()) {
		if time.Now().After(end) {
			errs, listener := g.Errors()
			t.Fatalf("gateway %d: not %s within 20 s: %+v, streams %q, listener %q", g.index, what, g.View(), errs,
				listener)
		}
		time.Sleep(time.Millisecond)
	}
}

func inStep(v *View) bool {
	return !slices.ContainsFunc(v.Members, func(m Member) bool { return !m.HasOurs || !m.HasIts })
}

func (g *gateway) copies(of int) func(v *View) bool {
	return func(v *View) bool { return v.Members[0].Copies+v.Members[1].Copies == of }
}

// ranks returns the ranks of all source addresses, in order; -1 for those that are not announced.
func (l *lab) ranks(v *View) []int { return l.ranksOf(v, l.group.Members...) }

// ranksOf returns the ranks of the source addresses of gateways.
func (l *lab) ranksOf(v *View, of ...config.GroupMember) (list []int) {
	for i := range of {
		for _, a := range of[i].Sources {
			rank := -1
			if j := slices.IndexFunc(v.Announced, func(s pulse.Source) bool { return s.Address == a }); j >= 0 {
				rank = v.Announced[j].Rank
			}
			list = append(list, rank)
		}
	}
	return list
}

// TestThreeGateways: a group begins, copies flows, loses a gateway, which comes back without memory
// and takes its flows back.
func TestThreeGateways(t *testing.T) {
	l := newLab(t, 3)
	a, b, c := l.gateways[0], l.gateways[1], l.gateways[2]
	a.start(false)
	b.start(false)
	if _, open := a.OpenAddress(false); open {
		t.Error("an address is open before all gateways were reached")
	}
	c.start(false)
	for _, g := range l.gateways {
		g.until("in step with all", inStep)
		g.until("open", func(v *View) bool { return v.SourceAddresses[0].State == sources.Open })
		<-g.opened
	}
	order := sources.Order("gw-a", []string{"gw-a", "gw-b", "gw-c"})
	rank := slices.Index(order, "gw-b")
	if got := l.ranks(b.View()); got[0] != rank || got[1] != rank || got[2] != 0 || got[3] != 0 {
		t.Errorf("gw-b announces with ranks %v; the order of gw-a is %v", got, order)
	}
	for port := range uint16(100) {
		a.flow(1000 + port)
	}
	b.until("a copy of each flow", b.copies(100))
	c.until("a copy of each flow", c.copies(100))
	a.until("acknowledged", func(v *View) bool { return v.Copied && v.Members[0].Lag+v.Members[1].Lag == 0 })
	for slot := range a.file.Table.Slots() {
		if r := a.file.Table.AtSlot(slot); r != 0 && a.handle.Live(r) &&
			a.Verdicts([]uint32{slot})[0] != group.Protected {
			t.Errorf("the flow of slot %d is not protected", slot)
		}
	}

	a.stop()
	if list := a.Verdicts([]uint32{1}); list != nil {
		t.Errorf("verdicts %v of a gateway that has stopped", list)
	}
	b.until("without gw-a", func(v *View) bool { return !v.Members[0].HasIts })
	if got := l.ranks(b.View()); got[0] != rank+staleRank || b.View().Members[0].Copies != 100 || !b.View().Copied {
		t.Errorf("when gw-a is gone, gw-b announces with ranks %v, and has %+v", got, b.View())
	}
	first := a.View().SourceAddresses
	// gw-a has the flows of the others, and gets nothing back from gw-b.
	all := l.group.Members
	l.group.Members = slices.Clone(all)
	l.group.Members[1].Address = netip.AddrPortFrom(all[1].Address.Addr(), 9)
	a.start(false)
	l.group.Members = all
	a.until("with the others' flows", func(v *View) bool { return v.Members[0].HasIts && v.Members[1].HasIts })
	if v := a.View(); v.Complete || v.Joined || l.ranks(v)[0] <= l.ranks(b.View())[0] {
		t.Errorf("before gw-b has returned its flows, gw-a has joined: %t; it announces with ranks %v, gw-b with %v",
			v.Joined, l.ranks(v), l.ranks(b.View()))
	}
	a.stop()
	a.start(true)
	if got := a.View().SourceAddresses; got[0].State != sources.Closed || got[1].State != sources.Open {
		t.Errorf("after a loss of memory the addresses are %v, before %v", got, first)
	}
	a.until("in step with all", inStep)
	a.until("the first address spare", func(v *View) bool { return v.SourceAddresses[0].State == sources.Spare })
	if n := a.file.Table.Counts().Live[0]; n != 100 {
		t.Errorf("gw-a has taken back %d flows, want 100", n)
	}
	a.flow(2000)
	b.until("a copy of each flow", b.copies(101))
}

// TestRefusedFlows: both gateways show how many flows one of them has no room for.
func TestRefusedFlows(t *testing.T) {
	l := newLab(t, 2)
	a, b := l.gateways[0], l.gateways[1]
	a.start(false)
	b.start(false)
	a.until("in step", inStep)
	a.until("open", func(v *View) bool { return v.SourceAddresses[0].State == sources.Open })
	for port := range uint16(130) { // copies of one gateway take half of the table
		a.flow(1000 + port)
	}
	a.until("refused", func(v *View) bool { return v.Members[0].Refused == 2 && v.Members[0].RefusedIts == 0 })
	b.until("refusing", func(v *View) bool { return v.Members[0].RefusedIts == 2 && v.Members[0].Refused == 0 })
}

// TestKeptTable: after the crash of a process alone, the same addresses and flows go on.
func TestKeptTable(t *testing.T) {
	l := newLab(t, 3)
	for _, g := range l.gateways {
		g.start(false)
	}
	a, b := l.gateways[0], l.gateways[1]
	a.until("open", func(v *View) bool { return v.SourceAddresses[0].State == sources.Open })
	a.flow(1000)
	b.until("a copy", b.copies(1))
	a.stop()
	a.start(true)
	if got := a.View().SourceAddresses; got[0].State != sources.Open || got[1].State != sources.Spare {
		t.Errorf("after a crash the addresses are %v", got)
	}
	a.until("in step with all", inStep)
	a.flow(1001)
	b.until("copies", b.copies(2))
	if v := a.View(); v.HeldPorts != 0 || !v.Joined {
		t.Errorf("%+v", v)
	}
}

// TestClockBehind: a gateway that has lost its disk, and whose clock was behind when it began,
// takes a later incarnation than the one that the others know.
func TestClockBehind(t *testing.T) {
	l := newLab(t, 3)
	a, b := l.gateways[0], l.gateways[1]
	disk := filepath.Join(a.dir, "disk")
	must(t, os.Mkdir(disk, 0o700))
	must(t, os.WriteFile(filepath.Join(disk, sources.Name), fmt.Appendf(nil, `{"version":1,"incarnation":%d}`,
		time.Now().Add(time.Hour).UnixNano()), 0o600))
	for _, g := range l.gateways {
		g.start(false)
	}
	for _, g := range l.gateways {
		g.until("in step with all", inStep)
	}
	a.until("open", func(v *View) bool { return v.SourceAddresses[0].State == sources.Open })
	a.flow(1000)
	b.until("a copy", b.copies(1))
	before, _ := a.sources.Incarnation()
	a.stop()
	must(t, os.RemoveAll(disk))
	for _, kept := range []bool{false, true} {
		a.start(kept)
		for _, g := range l.gateways {
			g.until("in step with all", inStep)
		}
		if after, k := a.sources.Incarnation(); after <= before || k != kept {
			t.Errorf("kept %t: incarnation %d, kept %t; before %d", kept, after, k, before)
		}
		a.stop()
	}
	if n := b.View().Members[0].Copies; n != 1 {
		t.Errorf("gw-b has %d copies, want 1", n)
	}
}

// TestReplacedProcess: a process that other gateways have accepted takes no later incarnation: the
// one for which they refuse it is of a process that has replaced this one.
func TestReplacedProcess(t *testing.T) {
	l := newLab(t, 2)
	a := l.gateways[0]
	for _, g := range l.gateways {
		g.start(false)
		defer g.stop()
	}
	a.until("in step with all", inStep)
	a.until("accepted", func(*View) bool { return a.joined.Load() != 0 })
	before, _ := a.sources.Incarnation()
	for _, tt := range []struct {
		joined time.Duration // ago
		raised bool
	}{{time.Minute, false}, {0, true}} {
		a.joined.Store(now() - int64(tt.joined))
		a.refusal.Store(before + 100)
		a.until("the refusal is read", func(*View) bool { return a.refusal.Load() == 0 })
		time.Sleep(300 * time.Millisecond)
		if after, _ := a.sources.Incarnation(); after > before != tt.raised {
			t.Errorf("accepted %v ago: incarnation %d, before %d", tt.joined, after, before)
		}
	}
}

// TestNextProcess: the next process of a gateway attracts packets for the flows of a gateway that
// is gone, as the process before did. By a hand-over it attracts packets for the VIPs at once, too.
func TestNextProcess(t *testing.T) {
	l := newLab(t, 3)
	for _, g := range l.gateways {
		g.start(false)
	}
	a, b := l.gateways[0], l.gateways[1]
	for _, g := range l.gateways {
		g.until("in step with all", inStep)
	}
	b.until("open", func(v *View) bool { return v.SourceAddresses[0].State == sources.Open })
	b.flow(1000)
	a.until("a copy", a.copies(1))
	b.stop()
	a.until("without gw-b", func(v *View) bool { return !v.Members[0].HasIts })
	before := l.ranks(a.View())
	for _, a.taken = range []bool{true, false} {
		a.stop()
		a.start(true)
		v := a.View()
		if got := l.ranks(v); got[2] != before[2] || got[3] != before[3] {
			t.Errorf("taken %t: gw-a announces with ranks %v, the process before with %v", a.taken, got, before)
		}
		if v.Joined != a.taken {
			t.Errorf("taken %t: joined is %t at once", a.taken, v.Joined)
		}
		a.until("joined", func(v *View) bool { return v.Joined })
	}
}

// TestPauseOfStalledExchange: Pause ends with its context while the exchange stands still, and then
// pauses nothing.
func TestPauseOfStalledExchange(t *testing.T) {
	g := newLab(t, 1).gateways[0]
	g.start(false)
	release, stalled := make(chan struct{}), make(chan struct{})
	go g.exchange.Do(func() { close(stalled); <-release })
	<-stalled
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		resume, err := g.Pause(ctx)
		if err == nil {
			resume()
		}
		failed <- err
	}()
	select {
	case err := <-failed:
		if err == nil || !strings.Contains(err.Error(), "does not stop") {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits for the exchange after its time")
	}
	close(release)
	resume, err := g.Pause(t.Context())
	must(t, err)
	resume()
	if !g.exchange.Do(func() {}) {
		t.Error("the exchange has ended")
	}
}

// TestAddressMoves: a source address moves from one gateway to another. As long as the first one
// runs with the earlier list, the other one does not take ports of the address; then it takes over
// the flows.
func TestAddressMoves(t *testing.T) {
	l := newLab(t, 3)
	for _, g := range l.gateways {
		g.start(false)
	}
	a, b, c := l.gateways[0], l.gateways[1], l.gateways[2]
	for _, g := range l.gateways {
		g.until("in step with all", inStep)
	}
	a.until("open", func(v *View) bool { return v.SourceAddresses[0].State == sources.Open })
	a.flow(1000)
	c.until("a copy", c.copies(1))

	l.group.Members = slices.Clone(l.group.Members)
	first, second := &l.group.Members[0], &l.group.Members[1]
	first.Sources, second.Sources = second.Sources, first.Sources
	for _, g := range []*gateway{b, c} {
		g.stop()
		g.start(true)
	}
	b.until("refused by gw-a", func(*View) bool {
		errs, _ := b.Errors()
		return strings.Contains(errs[0], "group.members of gw-a and of gw-b differ in source addresses")
	})
	b.until("in step with gw-c", func(v *View) bool { return v.Members[1].HasIts && v.Members[1].HasOurs })
	if got := b.View().SourceAddresses[0]; got.State != sources.Closed {
		t.Errorf("while gw-a has the earlier list, gw-b has %v", got)
	}
	a.stop()
	a.start(true)
	for _, g := range l.gateways {
		g.until("in step with all", inStep)
	}
	b.until("open", func(v *View) bool { return v.SourceAddresses[0].State == sources.Open })
	if n := b.file.Table.CopiesOf(1) + b.file.Table.CopiesOf(2); n != 0 || b.file.Table.Counts().Live[0] != 1 {
		t.Errorf("gw-b has %d copies and %d flows, want the flow of the address that moved", n,
			b.file.Table.Counts().Live[0])
	}
}

// end ends the flow, or the copy, of a gateway with a client's port.
func (g *gateway) end(port uint16) {
	t := g.l.t
	t.Helper()
	found := false
	g.handle.Enter(flowtable.Time(boottime.Nanos()))
	for slot := range g.file.Table.Slots() {
		r := g.file.Table.AtSlot(slot)
		if r == 0 || !g.handle.Live(r) {
			continue
		}
		var client header.Tuple
		if g.handle.Tuple(r, flowtable.ClientSide, &client); client.SrcPort == port {
			g.handle.Delete(r)
			found = true
		}
	}
	g.handle.Publish()
	g.handle.Leave()
	g.Board().Changed()
	if !found {
		t.Fatalf("gateway %d has no flow of port %d", g.index, port)
	}
}

// numbers returns the number of each other gateway.
func numbers(v *View) map[string]group.Member {
	of := map[string]group.Member{}
	for _, m := range v.Members {
		of[m.Name] = m.Number
	}
	return of
}

// TestJoinAndRemove: gateways join and are removed while others run. They keep their numbers; of a
// removed one the flows live on, and its number is another one's when the last has ended.
func TestJoinAndRemove(t *testing.T) {
	l := newLab(t, 4)
	a, b, c, d := l.gateways[0], l.gateways[1], l.gateways[2], l.gateways[3]
	all := l.group.Members
	has := func(n int) func(v *View) bool {
		return func(v *View) bool { return len(v.Members) == n && inStep(v) }
	}
	open := func(v *View) bool { return v.SourceAddresses[0].State == sources.Open }
	l.group.Members = []config.GroupMember{all[0], all[2]} // gw-b comes between the two
	a.start(false)
	c.start(false)
	for _, g := range []*gateway{a, c} {
		g.until("in step with the other", has(1))
		g.until("open", open)
	}
	a.flow(1000)
	c.until("a copy", func(v *View) bool { return v.Members[0].Copies == 1 })
	was := numbers(a.View())["gw-c"]

	l.group.Members = all[:3]
	a.Set(l.group.Members)
	b.start(false)
	b.until("connected to gw-a", func(v *View) bool { return v.Members[0].HasIts && v.Members[0].HasOurs })
	if b.View().Complete || open(b.View()) {
		t.Error("gw-b opens an address although gw-c does not know it")
	}
	c.Set(l.group.Members)
	for _, g := range []*gateway{a, b, c} {
		g.until("in step with both", has(2))
		g.until("open", open)
	}
	if is := numbers(a.View()); is["gw-c"] != was || is["gw-b"] == was {
		t.Errorf("gw-a has the numbers %v, gw-c had %d", is, was)
	}
	if n := b.View().Members[0].Copies; n != 1 {
		t.Errorf("gw-b has %d copies of the flow from before it joined", n)
	}
	b.flow(2000)
	for _, g := range []*gateway{a, c} {
		g.until("a copy of gw-b's flow", func(v *View) bool {
			return g.file.Table.CopiesOf(int(numbers(v)["gw-b"])+1) == 1
		})
	}

	for _, leaves := range []bool{false, true} {
		if leaves {
			b.Leave()
		}
		b.stop()
		a.until("without gw-b", func(v *View) bool { return !v.Members[0].HasOurs })
		if a.Ended("gw-b") || a.Ended("gw-c") {
			t.Error("a gateway has ended at once")
		}
		a.mu.Lock()
		i, _ := a.others.find("gw-b")
		if a.others[i].left != 0 {
			a.others[i].left -= int64(endedAfter)
		}
		a.mu.Unlock()
		if a.Ended("gw-b") != leaves || a.Ended("gw-c") {
			t.Errorf("leaves %t: ended: gw-b %t, gw-c %t", leaves, a.Ended("gw-b"), a.Ended("gw-c"))
		}
		if !leaves {
			b.start(true)
			a.until("in step with both", has(2))
		}
	}
	a.end(1000)
	a.until("a held port", func(v *View) bool { return v.HeldPorts == 1 && v.Members[1].Lag == 0 })
	l.group.Members = []config.GroupMember{all[0], all[2]}
	a.Set(l.group.Members)
	c.Set(l.group.Members)
	for _, g := range []*gateway{a, c} {
		g.until("in step with the other", has(1))
		g.until("without a held port", func(v *View) bool { return v.HeldPorts == 0 })
		v := g.View()
		if len(v.Removed) != 1 || v.Removed[0].Name != "gw-b" {
			t.Errorf("gateway %d: removed are %v", g.index, v.Removed)
		}
		if got := l.ranksOf(v, all[1]); got[0] <= staleRank || got[1] <= staleRank {
			t.Errorf("gateway %d announces the addresses of gw-b with ranks %v", g.index, got)
		}
	}

	l.group.Members = []config.GroupMember{all[0], all[2], all[3]}
	a.Set(l.group.Members)
	a.end(2000)
	c.end(2000)
	for _, g := range []*gateway{a, c} {
		g.until("without gw-b's flow", func(v *View) bool { return len(v.Removed) == 0 })
		if got := l.ranksOf(g.View(), all[1]); got[0] != -1 {
			t.Errorf("gateway %d announces the addresses of gw-b with ranks %v", g.index, got)
		}
	}
	c.Set(l.group.Members)
	d.start(false)
	for _, g := range []*gateway{a, c, d} {
		g.until("in step with both", has(2))
	}
	if n := numbers(c.View())["gw-d"]; n != 1 {
		t.Errorf("gw-d has number %d at gw-c, want 1 of gw-b", n)
	}
	d.until("open", open)
	d.flow(3000)
	c.until("a copy of gw-d's flow", func(v *View) bool { return v.Members[1].Copies == 1 })
}

// TestRemovedBefore: the next process of a gateway goes on with the flows of one that was removed,
// and announces its source addresses, until the last of them has ended. The removed gateway may
// return.
func TestRemovedBefore(t *testing.T) {
	l := newLab(t, 3)
	a, b, c := l.gateways[0], l.gateways[1], l.gateways[2]
	all := l.group.Members
	for _, g := range l.gateways {
		g.start(false)
	}
	for _, g := range l.gateways {
		g.until("in step with all", inStep)
	}
	b.until("open", func(v *View) bool { return v.SourceAddresses[0].State == sources.Open })
	for port := range uint16(2) {
		b.flow(1000 + port)
	}
	a.until("copies", a.copies(2))
	c.until("copies", c.copies(2))
	b.stop()
	l.group.Members = []config.GroupMember{all[0], all[2]}
	for _, g := range []*gateway{a, c} {
		g.Set(l.group.Members)
		g.until("without gw-b", func(v *View) bool { return len(v.Members) == 1 && len(v.Removed) == 1 })
	}
	before := l.ranksOf(a.View(), all[1])
	has := func(when string) {
		t.Helper()
		v := a.View()
		if len(v.Removed) != 1 || v.Removed[0].Name != "gw-b" {
			t.Fatalf("%s removed are %v", when, v.Removed)
		}
		if got := l.ranksOf(v, all[1]); !slices.Equal(got, before) || got[0] <= staleRank {
			t.Errorf("%s gw-a announces the addresses of gw-b with ranks %v, the process before with %v", when, got,
				before)
		}
	}
	a.gone = a.View().Removed
	for _, a.taken = range []bool{true, false} {
		a.stop()
		a.start(true)
		has("at once")
		a.until("in step with gw-c", func(v *View) bool { return len(v.Members) == 1 && inStep(v) })
		a.until("with all flows of its group", func(*View) (all bool) {
			a.exchange.Do(func() { all = a.exchange.ResetsUntil() > 0 })
			return all
		})
		a.end(map[bool]uint16{true: 1000, false: 1001}[a.taken])
		if a.taken {
			has("with a flow of gw-b")
		}
	}
	a.until("without gw-b's flows", func(v *View) bool { return len(v.Removed) == 0 })
	if got := l.ranksOf(a.View(), all[1]); got[0] != -1 {
		t.Errorf("gw-a announces the addresses of gw-b with ranks %v", got)
	}

	c.gone = c.View().Removed
	c.stop()
	c.start(true)
	for _, g := range []*gateway{a, c} {
		g.Set(all)
		g.until("with gw-b", func(v *View) bool { return len(v.Members) == 2 && len(v.Removed) == 0 })
	}
	l.group.Members = all
	b.start(false)
	for _, g := range l.gateways {
		g.until("in step with all", inStep)
	}
	if n := b.file.Table.Counts().Live[0]; n != 2 {
		t.Errorf("gw-b has taken back %d flows, want 2", n)
	}
}

// TestTooManyRemoved: each other gateway must have a number.
func TestTooManyRemoved(t *testing.T) {
	l := newLab(t, 1)
	c := Config{Group: &l.group, Self: "gw-a", Removed: make([]config.GroupMember, group.MaxMembers+1)}
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), "9 other gateways") {
		t.Errorf("got %v", err)
	}
}

// TestReturn: a gateway that was removed returns while others have copies of its flows, and takes
// them back.
func TestReturn(t *testing.T) {
	l := newLab(t, 3)
	a, b, c := l.gateways[0], l.gateways[1], l.gateways[2]
	for _, g := range l.gateways {
		g.start(false)
	}
	for _, g := range l.gateways {
		g.until("in step with all", inStep)
		g.until("open", func(v *View) bool { return v.SourceAddresses[0].State == sources.Open })
	}
	b.flow(1000)
	a.until("a copy", a.copies(1))
	c.until("a copy", c.copies(1))
	b.stop()
	all := l.group.Members
	for _, g := range []*gateway{a, c} {
		g.Set([]config.GroupMember{all[0], all[2]})
		g.until("without gw-b", func(v *View) bool { return len(v.Members) == 1 && len(v.Removed) == 1 })
		g.Set(all)
		g.until("with gw-b", func(v *View) bool { return len(v.Members) == 2 && len(v.Removed) == 0 })
	}
	b.start(false)
	for _, g := range l.gateways {
		g.until("in step with all", inStep)
	}
	if n := b.file.Table.Counts().Live[0]; n != 1 {
		t.Errorf("gw-b has taken back %d flows, want 1", n)
	}
	a.until("a copy", a.copies(1))
}

// TestReturnAndAway: a gateway that was away, was removed, and is a member again without ever being
// heard, is away again: else its copies would have no clock for ever.
func TestReturnAndAway(t *testing.T) {
	l := newLab(t, 2)
	a, b := l.gateways[0], l.gateways[1]
	a.keepAfter = time.Second
	a.start(false)
	b.start(false)
	for _, g := range l.gateways {
		g.until("in step", inStep)
		g.until("open", func(v *View) bool { return v.SourceAddresses[0].State == sources.Open })
	}
	b.flow(1000)
	a.until("a copy", func(v *View) bool { return v.Members[0].Copies == 1 })
	b.stop()
	away := func(*View) bool {
		const later = flowtable.Time(24 * time.Hour) // the copy has expired
		now := flowtable.Time(boottime.Nanos())
		a.handle.Enter(now)
		defer a.handle.Leave()
		for slot := range a.file.Table.Slots() {
			if r := a.file.Table.AtSlot(slot); r != 0 && a.handle.Live(r) {
				return a.handle.Outdated(r, now+later)
			}
		}
		return false
	}
	a.until("without gw-b for a second", away)
	a.Set(l.group.Members[:1])
	a.Set(l.group.Members)
	a.until("without gw-b for a second again", away)
}

// TestStrangers: a host that is no member opens connections at a high rate, and causes a line of
// log a second.
func TestStrangers(t *testing.T) {
	l := newLab(t, 2)
	g := l.gateways[0]
	var out bytes.Buffer // the log's lock guards it until the gateway has stopped
	g.log = slog.NewTextHandler(&out, nil)
	g.start(false)
	const connections = 200
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 7, 99)}, Timeout: 10 * time.Second}
	began := time.Now()
	for n := 0; n < connections; {
		c, err := d.Dial("tcp", l.group.Members[0].Address.String())
		if err != nil { // the listener is not open yet
			time.Sleep(10 * time.Millisecond)
			continue
		}
		_, _ = c.Read(make([]byte, 1)) // it is closed
		_ = c.Close()
		n++
	}
	most := 2 + int(time.Since(began)/time.Second)*refusedPerSecond
	g.stop()
	if lines := strings.Count(out.String(), "127.0.7.99 is not the address of a member"); lines == 0 || lines > most {
		t.Errorf("%d lines about %d connections, want 1 to %d", lines, connections, most)
	}
}

// TestStreamThatFailsAgain: a stream that fails for the same reason at each attempt is logged once,
// and another reason again.
func TestStreamThatFailsAgain(t *testing.T) {
	var out bytes.Buffer
	m := &Members{c: Config{Log: slog.New(slog.NewTextHandler(&out, nil))}}
	m.others[0] = &other{}
	for port := range 50 {
		m.failed(0, fmt.Errorf("stream with gw-b: %w", &net.OpError{Op: "read", Net: "tcp",
			Source: &net.TCPAddr{Port: port}, Err: syscall.ECONNRESET}))
	}
	m.failed(0, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
	m.failed(0, errors.New("the lease has run out"))
	if lines := strings.Count(out.String(), "\n"); lines != 3 || m.others[0].err != "the lease has run out" {
		t.Errorf("%d lines, want 3:\n%s", lines, out.String())
	}
}

// TestAlone: a gateway whose others are not there attracts packets after a while, and copies
// nothing.
func TestAlone(t *testing.T) {
	l := newLab(t, 2)
	g := l.gateways[0]
	g.start(false)
	if g.View().Joined {
		t.Error("it has joined at once")
	}
	began := time.Now()
	g.until("joined", func(v *View) bool { return v.Joined })
	if took := time.Since(began); took < joinWithin-time.Second {
		t.Errorf("it has joined after %v", took)
	}
	v := g.View()
	if got := l.ranks(v); v.Copied || v.Complete || !slices.Equal(got, []int{lostRank, lostRank, -1, -1}) {
		t.Errorf("it announces with ranks %v: %+v", got, v)
	}
	if errs, listener := g.Errors(); errs[0] == "" || listener != "" {
		t.Errorf("streams %q, listener %q", errs, listener)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestInUse: an address is in use while its last flow ends and holds its port.
func TestInUse(t *testing.T) {
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 64, Timeouts: flowtable.DefaultTimeouts(), Group: true})
	must(t, err)
	h, err := table.Register()
	must(t, err)
	source := netip.MustParseAddr("198.51.100.1")
	h.Enter(1e9)
	r, s := h.Create(1e9, &flowtable.NewFlow{
		Client: header.Tuple{Src: header.AddrFrom4([4]byte{203, 0, 113, 1}), SrcPort: 1,
			Dst: header.AddrFrom4([4]byte{203, 0, 113, 9}), DstPort: 80, Proto: header.ProtoTCP},
		Backend: header.AddrFrom4([4]byte{10, 0, 0, 1}), BackendPort: 8080, Source: header.AddrFrom(source),
		SourcePort: 1, Tracked: true})
	if s != flowtable.Created || !h.Report(r) {
		t.Fatal(s)
	}
	m := &Members{c: Config{Table: table, InUse: func(netip.Addr) int {
		h.Delete(r) // after the look at its record
		return 0
	}}}
	if !m.inUse(source) {
		t.Error("an address with a held port is not in use")
	}
	h.Release(r, 0)
	if m.inUse(source) {
		t.Error("an address without flows is in use")
	}
}
