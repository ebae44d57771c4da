package bgp

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/announce/kinds"
)

// TestRename: while two BGPPeers have one router, the older one has the session, and the other one
// a problem. When the older one is deleted, the other one takes over the session, and no route is
// withdrawn. If it has an edit that needs a new session, that waits for the gateway's turn.
func TestRename(t *testing.T) {
	for name, edit := range map[string]func(p *kinds.Peer){
		"":         func(*kinds.Peer) {},
		"timers":   func(p *kinds.Peer) { p.Hold, p.Keepalive = 30*time.Second, 10*time.Second },
		"password": func(p *kinds.Peer) { p.Password = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			port := closedPort(t)
			r := newRouter(t, port, false)
			s, w := newSpeaker(t, port, false)
			r.until(2, s, w)
			begun := s.sessions["b"].begun
			renamed := *w.Set.Peers[1]
			renamed.Name, renamed.Ref = "a2", kinds.Ref{Kind: "BGPPeer", Name: "a2"} // before b in any order by name
			edit(&renamed)
			for _, want := range []struct {
				peers    []*kinds.Peer
				problems int
			}{{slices.Concat(w.Set.Peers, []*kinds.Peer{&renamed}), 1}, {[]*kinds.Peer{w.Set.Peers[0], &renamed}, 0}} {
				w.Set = &kinds.Set{Advertisements: w.Set.Advertisements, Peers: want.peers}
				s.apply(w, turnOf(s.config.RouterID, time.Now()).Add(turnLength))
				if waits := name == "password" && want.problems == 0; waits == s.turn.IsZero() {
					t.Fatalf("turn: %v", s.turn)
				}
				for range 30 {
					if n := r.paths(); n != 2 {
						t.Fatalf("the router has %d paths, want 2: %+v", n, s.Report().Peers)
					}
					time.Sleep(10 * time.Millisecond)
				}
				problems := s.Report().Problems
				if len(problems) != want.problems || want.problems > 0 && (problems[0].About != renamed.Ref ||
					problems[0].Reason != kinds.RouterTaken || !strings.Contains(problems[0].Note, "BGPPeer b has")) {
					t.Fatalf("problems: %+v", problems)
				}
			}
			if got := slices.Sorted(maps.Keys(s.sessions)); !slices.Equal(got, []string{"a", "a2"}) {
				t.Fatalf("sessions of %q", got)
			}
			if session := s.sessions["a2"]; !session.up || !session.begun.Equal(begun) {
				t.Errorf("the session has begun again: %+v", s.Report().Peers)
			} else if timersOf(session.peer) != timersOf(&renamed) || session.timers != timersOf(&renamed) {
				t.Errorf("timers: %+v", session.timers)
			}
			if waits := s.waiting["a2"]; (name == "password") != (waits == "password") {
				t.Errorf("waits for its turn: %q", waits)
			}
		})
	}
}

// TestOldestHolds: of BGPPeers with one router, the oldest has the session if none has it yet, and
// keeps it. Only the holder has routes.
func TestOldestHolds(t *testing.T) {
	s, w := newSpeaker(t, closedPort(t), false)
	first := w.Set.Peers[0]
	second, third := *first, *first
	first.Name, first.Created = "a", time.Unix(2, 0)
	second.Name, second.Created = "b", time.Unix(1, 0)
	third.Name, third.Created = "c", time.Unix(0, 0)
	for _, peers := range [][]*kinds.Peer{{first, &second}, {first, &second, &third}} {
		w.Set = &kinds.Set{Advertisements: w.Set.Advertisements, Peers: peers}
		s.Apply(w)
		for name, session := range s.sessions {
			_, err := session.hop(true)
			if holds := name == "b"; holds != (err == nil) || holds == session.begun.IsZero() {
				t.Errorf("%s of %d: begun %v, %v", name, len(peers), session.begun, err)
			}
		}
		if list := has(t, s); !slices.Equal(list, addresses[:1]) {
			t.Errorf("GoBGP has %v", list)
		}
		if n := len(s.problems); n != len(peers)-1 {
			t.Errorf("%d problems of %d peers: %+v", n, len(peers), s.problems)
		}
	}
}
