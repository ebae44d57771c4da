package bgp

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/announce/kinds"
)

// messages is a handler that keeps all records.
type messages struct {
	slog.Handler
	mu   *sync.Mutex
	list *[]string
}

func newMessages() messages { return messages{slog.DiscardHandler, new(sync.Mutex), new([]string)} }

func (m messages) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (m messages) WithAttrs([]slog.Attr) slog.Handler           { return m }
func (m messages) Handle(_ context.Context, r slog.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	*m.list = append(*m.list, r.Message)
	return nil
}

// count returns how often a message was logged.
func (m messages) count(message string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range *m.list {
		if one == message {
			n++
		}
	}
	return n
}

// TestNeverUp: the status shows why a session never came up, from the texts that GoBGP logs now,
// and lines of VIPs have the same reason.
func TestNeverUp(t *testing.T) {
	port := closedPort(t)
	newRouter(t, port, false)
	s, w := newSpeaker(t, port, false)
	log := newMessages()
	s.log = slog.New(log)
	template := kinds.Peer{MyASN: 64500, PeerASN: 64501, Port: port, Hold: 90 * time.Second,
		Keepalive: 30 * time.Second, Connect: time.Second}
	peer := func(name, address string) *kinds.Peer {
		p := template
		p.Name, p.Address = name, netip.MustParseAddr(address)
		return &p
	}
	refused := peer("refused", "127.0.0.4")   // no socket listens there
	unknown := peer("unknown", "127.0.0.3")   // the router does not know this side's address
	stranger := peer("stranger", "127.0.0.2") // the router has another AS number
	stranger.Source, stranger.PeerASN = sources[0], 64502
	unreachable := peer("unreachable", "fe80::1") // without an interface: the kernel refuses it
	unreachable.BFD = &kinds.BFD{Receive: time.Second, Transmit: time.Second, Multiplier: 3}
	w.Set.Peers = []*kinds.Peer{refused, unknown, stranger, unreachable}
	want := map[string]string{
		"refused":     "no TCP connection: connection refused",
		"unknown":     endedByRouter,
		"stranger":    "refused by this side: code 2(open) subcode 2(bad peer as)",
		"unreachable": "no TCP connection: invalid argument",
	}
	said := func() (missing []string) {
		report := s.Report()
		for _, p := range report.Peers {
			if p.Why != want[p.Name] {
				missing = append(missing, p.Name+": "+p.Why)
			}
		}
		for _, l := range s.Lines(w.VIPs[0].VIP) {
			if l.Why != "the session is not up: "+want[l.To] && l.To != unreachable.Name { // IPv6 alone
				missing = append(missing, "VIP to "+l.To+": "+l.Why)
			}
		}
		if len(report.Peers) != len(want) {
			missing = append(missing, "not all peers")
		}
		if log.count("BFD packets cannot be sent; it is tried again") == 0 {
			missing = append(missing, "the log has nothing of BFD")
		}
		return missing
	}
	await := func() {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			s.Apply(w)
			missing := said()
			if missing == nil {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("want %q, have:\n%s", want, strings.Join(missing, "\n"))
			}
		}
	}
	await()
	if n := log.count("BGP session does not come up"); n != len(want) {
		t.Errorf("logged %d times, want each of %d sessions once: %q", n, len(want), *log.list)
	}
	rejected := *stranger // the router rejects the AS number of this side
	rejected.MyASN, rejected.PeerASN = 64599, 64501
	w.Set.Peers[2], want["stranger"] = &rejected, endedByRouter
	await()
}

// TestWhyNotUp: the reason does not guess what the router did if GoBGP does not log it.
func TestWhyNotUp(t *testing.T) {
	var peer netip.Addr
	var why string
	l := slog.New(newListener(newMessages(), func(p netip.Addr, _ time.Time, w string) { peer, why = p, w }))
	of := l.With("Topic", "Peer", "Key", "fe80::1%eth0")
	for _, tt := range []struct {
		say  func()
		want string
	}{
		{func() {
			of.Debug("failed to connect", "Error", "dial tcp [::]:0->[fe80::1%eth0]:179: i/o timeout")
		}, "no TCP connection: i/o timeout"},
		{func() {
			of.Debug("failed to connect", "Error",
				"dial tcp 10.0.0.9:0->10.0.0.1:179: bind: cannot assign requested address")
		}, "no TCP connection: bind: cannot assign requested address"},
		{func() { of.Debug("failed to connect", "Error", errors.New("other").Error()) }, "no TCP connection: other"},
		{func() { of.Info("sent notification", "Code", 5, "Subcode", 1) }, endedByRouter},
		{func() { of.Info("sent notification", "Code", 4, "Subcode", 0) },
			"the router accepts the connection, but sends no OPEN"},
		{func() { of.Info("sent notification", "Code", 6, "Subcode", 4) }, ""},
		{func() { of.Info("sent notification") }, "refused by this side: code 0(undefined) subcode 0(undefined)"},
		{func() { l.Debug("failed to connect", "Error", "of no peer") }, ""},
	} {
		peer, why = netip.Addr{}, ""
		if tt.say(); why != tt.want || tt.want != "" && peer.String() != "fe80::1%eth0" {
			t.Errorf("of %v: %q, want %q", peer, why, tt.want)
		}
	}
}
