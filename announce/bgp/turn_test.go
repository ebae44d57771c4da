package bgp

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/kinds"
)

// TestTurns: gateways with consecutive addresses never have overlapping turns, whenever each gets
// the edit, and none waits for longer than a cycle.
func TestTurns(t *testing.T) {
	t.Parallel()
	const seed = 36
	random := rand.New(rand.NewPCG(seed, seed))
	first := netip.MustParseAddr("10.0.0.250")
	for range 100 {
		now := time.Unix(random.Int64N(4e9), random.Int64N(1e9))
		var begins []time.Time
		for id, n := first, 0; n < turns; id, n = id.Next(), n+1 {
			heard := now.Add(time.Duration(random.Int64N(int64(3 * turns * turnLength))))
			at := turnOf(id, heard)
			if at.Before(heard) || at.Sub(heard) >= turns*turnLength {
				t.Fatalf("seed %d: %v waits for %v", seed, id, at.Sub(heard))
			}
			begins = append(begins, at)
		}
		slices.SortFunc(begins, time.Time.Compare)
		for i := range begins[1:] {
			if d := begins[i+1].Sub(begins[i]); d < turnLength {
				t.Fatalf("seed %d: two turns are %v apart", seed, d)
			}
		}
	}
}

// TestEachField: each field of a BGPPeer either needs a new session, or takes effect in the
// existing one. A new field that does neither would be ignored until the session ends.
func TestEachField(t *testing.T) {
	t.Parallel()
	before := &kinds.Peer{Name: "a", MyASN: 1, PeerASN: 2}
	other := map[reflect.Type]any{reflect.TypeFor[kinds.Ref](): kinds.Ref{Name: "other"},
		reflect.TypeFor[netip.Addr]():      netip.MustParseAddr("10.0.0.9"),
		reflect.TypeFor[*kinds.BFD]():      &kinds.BFD{Multiplier: 3},
		reflect.TypeFor[kinds.Selectors](): kinds.Selectors{nil},
		reflect.TypeFor[time.Duration]():   time.Second,
		reflect.TypeFor[time.Time]():       time.Unix(1, 0),
		reflect.TypeFor[uint32]():          uint32(7),
		reflect.TypeFor[uint16]():          uint16(7),
		reflect.TypeFor[string]():          "other",
		reflect.TypeFor[bool]():            true,
	}
	named := map[string]bool{}
	for i := range reflect.TypeFor[kinds.Peer]().NumField() {
		field := reflect.TypeFor[kinds.Peer]().Field(i)
		if !field.IsExported() || field.Name == "Name" { // the name identifies the peer
			continue
		}
		after := *before
		reflect.ValueOf(&after).Elem().Field(i).Set(reflect.ValueOf(other[field.Type]))
		fields := reopens(before, &after)
		for _, f := range fields {
			named[f] = true
		}
		if taken := reflect.DeepEqual(goesOn(before, &after), &after); taken == (len(fields) > 0) {
			t.Errorf("%s: taken over %v, and needs a new session for %q", field.Name, taken, fields)
		}
	}
	for _, o := range opening {
		if !named[o.field] {
			t.Errorf("%s is in no field of a peer", o.field)
		}
	}
}

// TestLiveEdits: edits that need no new session do not end it, and GoBGP has the new timers for the
// next one.
func TestLiveEdits(t *testing.T) {
	port := closedPort(t)
	r := newRouter(t, port, false)
	s, w := newSpeaker(t, port, false)
	s.bfdPort = port
	r.until(2, s, w)
	for _, edit := range []func(p *kinds.Peer){
		func(p *kinds.Peer) { p.Hold, p.Keepalive = 30*time.Second, 10*time.Second },
		func(p *kinds.Peer) { p.Connect = 20 * time.Second },
		func(p *kinds.Peer) { p.BFD = &kinds.BFD{Receive: time.Second, Transmit: time.Second, Multiplier: 3} },
		func(p *kinds.Peer) {
			p.BFD = &kinds.BFD{Receive: time.Second, Transmit: 2 * time.Second, Multiplier: 5}
		},
		func(p *kinds.Peer) { p.BFD = nil }, // BFD is not up
	} {
		edited := &kinds.Set{Advertisements: w.Set.Advertisements}
		for _, p := range w.Set.Peers {
			after := *p
			edit(&after)
			edited.Peers = append(edited.Peers, &after)
		}
		w.Set = edited
		for range 30 {
			s.Apply(w)
			if n := r.paths(); n != 2 {
				t.Fatalf("the router has %d paths, want 2: %+v", n, s.Report().Peers)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	for _, p := range s.Report().Peers {
		if !p.Up || p.Why != "holdTime 30s and keepaliveTime 10s are for the next session, 1m30s and 30s are in force" {
			t.Errorf("%+v", p)
		}
	}
	for _, session := range s.sessions {
		if session.timers != (timers{30 * time.Second, 10 * time.Second, 20 * time.Second}) {
			t.Errorf("GoBGP was given %+v", session.timers)
		}
	}
}

// TestReopenInTurn: established sessions stay as they are until the gateway's turn, and the status
// has its time. Sessions that are not up use the edit at once.
func TestReopenInTurn(t *testing.T) {
	now := time.Now()
	for name, edit := range map[string]func(p *kinds.Peer){
		"password":               func(p *kinds.Peer) { p.Password = "other" },
		"enableGracefulRestart":  func(p *kinds.Peer) { p.Restart = true },
		"peerAddress":            func(p *kinds.Peer) { p.Address = netip.MustParseAddr("127.0.0.9") },
		"dualStackAddressFamily": func(p *kinds.Peer) { p.DualStack = true },
		"routerID":               func(p *kinds.Peer) { p.RouterID = netip.MustParseAddr("10.0.0.77") },
	} {
		t.Run(name, func(t *testing.T) {
			port := closedPort(t)
			r := newRouter(t, port, false)
			s, w := newSpeaker(t, port, false)
			r.until(2, s, w)
			s.mu.Lock()
			s.sessions["b"].up = false // in the speaker's view
			s.mu.Unlock()
			before := map[string]time.Time{}
			for peer, session := range s.sessions {
				before[peer] = session.begun
			}
			edited := &kinds.Set{Advertisements: w.Set.Advertisements}
			for _, p := range w.Set.Peers {
				after := *p
				edit(&after)
				edited.Peers = append(edited.Peers, &after)
			}
			w.Set = edited
			again := func(at time.Time) (list []string) {
				s.apply(w, at)
				for _, peer := range []string{"a", "b"} {
					if session := s.sessions[peer]; !session.begun.Equal(before[peer]) {
						list = append(list, peer)
					}
				}
				return list
			}
			now = turnOf(s.config.RouterID, now).Add(turnLength) // the turn is over
			want := []string{"b"}
			if name == "routerID" {
				want = nil // a node has one router ID, and the session of a is up
			}
			if got := again(now); !slices.Equal(got, want) {
				t.Fatalf("begun again: %q, want %q", got, want)
			}
			turn := turnOf(s.config.RouterID, now)
			if why := s.Report().Peers[0].Why; why != fmt.Sprintf("a new session begins at %s, in this gateway's "+
				"turn, as these were edited: %s", turn.UTC().Format(time.RFC3339), name) {
				t.Errorf("said: %q", why)
			}
			if got := again(turn.Add(-time.Millisecond)); !slices.Equal(got, want) {
				t.Fatalf("begun again before the turn: %q", got)
			}
			if got := again(turn.Add(turnLength / 2)); !slices.Equal(got, want) { // suspended for too long
				t.Fatalf("begun again in another gateway's turn: %q", got)
			}
			last := turn.Add(turns*turnLength + time.Second)
			if name == "routerID" { // servers of one process must not start at the same time
				if s.inTurn(w, last) != w || !s.turn.IsZero() {
					t.Fatal("the router ID is not in force in the gateway's turn")
				}
				return
			}
			if got := again(last); !slices.Contains(got, "a") {
				t.Fatalf("begun again in its turn: %q", got)
			}
			if why := s.Report().Peers[0].Why; strings.Contains(why, "turn") {
				t.Errorf("said afterwards: %q", why)
			}
		})
	}
}

// TestTurnAfterClockStep: if the clock is set back while a session waits for the gateway's turn,
// the session waits at most for a cycle.
func TestTurnAfterClockStep(t *testing.T) {
	s := New(Config{Log: slog.New(slog.DiscardHandler), RouterID: netip.MustParseAddr("127.0.0.1")})
	s.identity.routerID = s.config.RouterID
	before := &kinds.Peer{Name: "a", Password: "one"}
	after := *before
	after.Password = "two"
	s.sessions["a"] = newSession(before)
	s.sessions["a"].up = true
	w := &announce.World{Set: &kinds.Set{Peers: []*kinds.Peer{&after}}}
	now := time.Unix(1_700_000_000, 0)
	for _, now := range []time.Time{now, now.Add(-24 * time.Hour)} {
		if s.inTurn(w, now) == w {
			t.Fatalf("at %v: it is the gateway's turn", now)
		}
		if wait := s.turn.Sub(now); wait > turns*turnLength {
			t.Errorf("at %v the session begins anew after %v", now, wait)
		}
	}
}
