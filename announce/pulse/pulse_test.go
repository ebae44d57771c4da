package pulse

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// gateway is a server whose state a test sets.
type gateway struct {
	listener *net.UnixListener
	state    atomic.Pointer[State]
	cancel   context.CancelFunc
	done     chan struct{}
}

func serve(t *testing.T, path string, first *State) *gateway {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, l.(*net.UnixListener), first)
}

func serveOn(t *testing.T, l *net.UnixListener, first *State) *gateway {
	ctx, cancel := context.WithCancel(t.Context())
	g := &gateway{listener: l, cancel: cancel, done: make(chan struct{})}
	g.state.Store(first)
	go func() {
		defer close(g.done)
		NewServer(g.state.Load, slog.New(slog.DiscardHandler)).Serve(ctx, l)
	}()
	t.Cleanup(g.stop)
	return g
}

func (g *gateway) stop() { g.cancel(); <-g.done }

func follow(t *testing.T, path string) <-chan Sight {
	t.Helper()
	sights := make(chan Sight, 64)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); Follow(ctx, path, func(s Sight) { sights <- s }, nil) }()
	t.Cleanup(func() { cancel(); <-done })
	return sights
}

// await returns the first sight that satisfies a condition.
func await(t *testing.T, sights <-chan Sight, what string, is func(Sight) bool) Sight {
	t.Helper()
	end := time.After(10 * time.Second)
	var last Sight
	for {
		select {
		case last = <-sights:
			if is(last) {
				return last
			}
		case <-end:
			t.Fatalf("waited for %s; the last sight is %+v", what, last)
		}
	}
}

// A reader gets the gateway's states, its last line, its end, and the next process.
func TestFollow(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p")
	sights := follow(t, path)
	await(t, sights, "no gateway", func(s Sight) bool {
		return s.State == nil && strings.Contains(s.Lost, "no gateway")
	})
	vips := []VIP{{netip.MustParseAddr("192.0.2.1"), []Service{{Namespace: "default", Name: "web", Usable: true}}}}
	first := &State{PID: 1, Phase: Serving, VIPs: vips}
	g := serve(t, path, first)
	await(t, sights, "the first state", func(s Sight) bool { return s.Lost == "" && s.State.Equal(first) })
	g.state.Store(&State{PID: 1, Phase: Serving, Failures: []string{"interface back0 is down"}})
	await(t, sights, "a failure", func(s Sight) bool { return len(s.State.Failures) == 1 && len(s.State.VIPs) == 0 })
	g.state.Store(&State{PID: 1, Phase: HandingOver})
	g.stop()
	await(t, sights, "the last words", func(s Sight) bool { return s.Lost == "" && s.State.Phase == HandingOver })
	lost := await(t, sights, "the end", func(s Sight) bool { return s.Lost != "" })
	if lost.State.Phase != HandingOver || !strings.Contains(lost.Lost, "ended") {
		t.Errorf("after the end: %+v", lost)
	}
	serve(t, path, &State{PID: 2, Phase: Opening})
	await(t, sights, "the next process", func(s Sight) bool { return s.Lost == "" && s.State.PID == 2 })
}

// A suspended process keeps its connection. The reader notices that no line arrives, connects
// again, and notices when a process answers.
func TestSilence(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var text atomic.Value // what each connection gets, and no more
	asked := make(chan struct{}, 64)
	text.Store(`{"pid":1,"phase":"serving"}` + "\n")
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			_, _ = conn.Write([]byte(text.Load().(string)))
			asked <- struct{}{}
			go func() { _, _ = io.Copy(io.Discard, conn); conn.Close() }()
		}
	}()
	sights := follow(t, path)
	heard := await(t, sights, "a state", func(s Sight) bool { return s.Lost == "" })
	silent := await(t, sights, "silence", func(s Sight) bool { return strings.Contains(s.Lost, "hangs") })
	if d := silent.At.Sub(heard.At); d < Silence {
		t.Errorf("silent after %v", d)
	}
	await(t, sights, "an answer", func(s Sight) bool { return s.Lost == "" && s.State.PID == 1 })
	// An incomplete line is ignored, and the first one must have a state.
	for _, nothing := range []string{`{"pid":2`, "\n"} {
		text.Store(nothing)
		for len(asked) > 0 {
			<-asked
		}
		<-asked // this connection may still have got the old text
		<-asked // by now the reader has processed the new one
		for len(sights) > 0 {
			<-sights
		}
		<-asked
		for len(sights) > 0 {
			if s := <-sights; s.Lost == "" {
				t.Errorf("after %q: %+v", nothing, s)
			}
		}
	}
	text.Store(`{"pid":2,"phase":"serving"}` + "\n")
	await(t, sights, "another process", func(s Sight) bool { return s.Lost == "" && s.State.PID == 2 })
}

// A process with the listening socket of the previous one continues for it: the reader never counts
// the gateway as lost, however the previous one ends.
func TestListenerGoesToTheNextProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p")
	first := serve(t, path, &State{PID: 1, Phase: Serving})
	sights := follow(t, path)
	await(t, sights, "the first process", func(s Sight) bool { return s.Lost == "" })
	file, err := first.listener.File()
	if err != nil {
		t.Fatal(err)
	}
	next, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	first.listener.SetUnlinkOnClose(false)
	first.stop()
	serveOn(t, next.(*net.UnixListener), &State{PID: 2, Phase: Serving})
	await(t, sights, "the next process", func(s Sight) bool {
		if s.Lost != "" {
			t.Errorf("lost: %+v", s)
		}
		return s.State.PID == 2
	})
}

// A reader that reads nothing is dropped, and others are served meanwhile.
func TestReaderThatDoesNotRead(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p")
	big := &State{PID: 1, Phase: Serving}
	for i := range 20_000 { // more than a socket's buffers hold
		big.VIPs = append(big.VIPs, VIP{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}),
			[]Service{{Namespace: "default", Name: "service", Usable: true}}})
	}
	g := serve(t, path, big)
	lazy, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer lazy.Close()
	await(t, follow(t, path), "the state", func(s Sight) bool { return s.State != nil && s.State.Equal(big) })
	ended := make(chan struct{})
	go func() { g.stop(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(time.Minute): // writeTimeout is a second
		t.Fatal("the gateway does not end")
	}
}

// TestChanges: a reader has the gateway's VIPs after any changes, and gets the changed ones only. A
// reader that does not ask for that gets all of them with each line.
func TestChanges(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p")
	r := rand.New(rand.NewPCG(1, 2))
	state := &State{PID: 1, Phase: Serving}
	for i := range 100 {
		state.VIPs = append(state.VIPs, VIP{netip.AddrFrom4([4]byte{10, 0, 0, byte(2 * i)}),
			[]Service{{Namespace: "default", Name: "web", Usable: true}}})
	}
	g := serve(t, path, state)
	sights := follow(t, path)
	seen := await(t, sights, "the first state", func(s Sight) bool { return s.State != nil })
	plain, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	lines := bufio.NewReader(plain)
	for round := range 20 {
		next := &State{PID: 1, Phase: Serving, VIPs: slices.Clone(state.VIPs)}
		for range 1 + r.IntN(5) {
			i := r.IntN(len(next.VIPs))
			v := VIP{next.VIPs[i].Address, []Service{{Namespace: "default", Name: "web", Usable: r.IntN(2) == 0}}}
			switch r.IntN(3) {
			case 0:
				next.VIPs = slices.Delete(next.VIPs, i, i+1)
			case 1:
				if v.Address = v.Address.Next(); Find(next.VIPs, v.Address) == nil {
					next.VIPs = slices.Insert(next.VIPs, i+1, v)
				}
			default:
				next.VIPs[i] = v
			}
		}
		var want []netip.Addr // the VIPs that differ
		for _, v := range slices.Concat(state.VIPs, next.VIPs) {
			a, b := Find(state.VIPs, v.Address), Find(next.VIPs, v.Address)
			if (a == nil || b == nil || !a.Equal(b)) && !slices.Contains(want, v.Address) {
				want = append(want, v.Address)
			}
		}
		if len(want) == 0 {
			continue
		}
		g.state.Store(next)
		now := await(t, sights, "the next state", func(s Sight) bool { return s.State.Equal(next) })
		slices.SortFunc(now.Changed, netip.Addr.Compare)
		slices.SortFunc(want, netip.Addr.Compare)
		if now.Since != seen.State || !slices.Equal(now.Changed, want) {
			t.Fatalf("round %d: changed since the state before (%v): %v, want %v", round, now.Since == seen.State,
				now.Changed, want)
		}
		for all := false; !all; {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				t.Fatal(err)
			}
			m, err := decode(line)
			if err != nil || m != nil && m.Changes != nil {
				t.Fatalf("a reader that did not ask: %+v, %v", m, err)
			}
			all = m != nil && m.State.Equal(next)
		}
		state, seen = next, now
	}
	// If most VIPs change, the line has all of them, and Since is nil.
	state = &State{PID: 1, Phase: Serving, VIPs: state.VIPs[:3]}
	g.state.Store(state)
	if now := await(t, sights, "few VIPs", func(s Sight) bool { return s.State.Equal(state) }); now.Since != nil {
		t.Errorf("after most VIPs changed: %d changes", len(now.Changed))
	}
}
