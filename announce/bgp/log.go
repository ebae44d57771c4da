package bgp

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	wire "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// listener is the handler of GoBGP's log. It passes on warnings only, because the Speaker logs each
// step of a session itself. It also extracts the reason why a session does not come up: GoBGP gives
// that reason only in its log. GoBGP sends no event for it, because the session stays in state
// Active (outgoingConnManager in GoBGP's pkg/server/fsm.go). TestNeverUp fails if GoBGP changes the
// texts.
type listener struct {
	slog.Handler
	peer  netip.Addr                                      // the logger's peer; not valid: none
	notUp func(peer netip.Addr, at time.Time, why string) // called with the reason why a session is not up
}

func newListener(to slog.Handler, notUp func(netip.Addr, time.Time, string)) *listener {
	return &listener{Handler: to, notUp: notUp}
}

// Enabled implements slog.Handler. It is true for all levels, because Handle reads all records.
func (l *listener) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs implements slog.Handler.
func (l *listener) WithAttrs(attributes []slog.Attr) slog.Handler {
	with := *l
	with.Handler = l.Handler.WithAttrs(attributes)
	for _, a := range attributes {
		if a.Key == "Key" { // an address only in loggers of peers
			with.peer, _ = netip.ParseAddr(a.Value.String())
		}
	}
	return &with
}

// WithGroup implements slog.Handler.
func (l *listener) WithGroup(name string) slog.Handler {
	with := *l
	with.Handler = l.Handler.WithGroup(name)
	return &with
}

// Handle implements slog.Handler.
func (l *listener) Handle(ctx context.Context, r slog.Record) error {
	switch r.Message {
	case "failed to connect", "outgoing connection IO error", "sent notification":
		if why := whyNotUp(&r); why != "" && l.peer.IsValid() {
			l.notUp(l.peer, r.Time, why)
		}
	}
	if r.Level < slog.LevelWarn || !l.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return l.Handler.Handle(ctx, r)
}

// endedByRouter is the reason if the router closed the connection, or sent a NOTIFICATION in place
// of the expected message, which GoBGP does not read.
const endedByRouter = "the router ended the connection before the session was up: its log has the reason"

// noConnection is the prefix of reasons why the router does not accept a TCP connection.
const noConnection = "no TCP connection: "

// whyNotUp returns the reason in a record; empty: it has none.
func whyNotUp(r *slog.Record) string {
	switch r.Message {
	case "failed to connect":
		why := attribute(r, "Error").String()
		if strings.HasPrefix(why, "dial tcp ") { // and both addresses, which the table of peers has
			_, why, _ = strings.Cut(why, ": ")
		}
		return noConnection + strings.TrimPrefix(why, "connect: ")
	case "sent notification":
		code, subcode := number(r, "Code"), number(r, "Subcode")
		switch code {
		case wire.BGP_ERROR_CEASE:
			return "" // this side ends the session to begin another one
		case wire.BGP_ERROR_FSM_ERROR:
			return endedByRouter
		case wire.BGP_ERROR_HOLD_TIMER_EXPIRED:
			return "the router accepts the connection, but sends no OPEN"
		}
		return "refused by this side: " + wire.NewNotificationErrorCode(code, subcode).String()
	}
	return endedByRouter
}

// notOpened translates GoBGP's reason for the end of a session that was not up.
func notOpened(reason string) string {
	if reason == "invalid-msg" || reason == "read-failed" {
		return endedByRouter
	}
	return "not opened: " + reason
}

// notUp records why a session does not come up. GoBGP's goroutines call it.
func (s *Speaker) notUp(peer netip.Addr, at time.Time, why string) {
	s.mu.Lock()
	for _, session := range s.sessions {
		if !session.up && session.concerns(peer, at) {
			s.setWhy(session, why)
		}
	}
	s.mu.Unlock()
	s.changed.Raise()
}

// setWhy sets the reason why a session does not come up. The caller holds s.mu. A router that
// closed a session or was rejected refuses connections for a while: that must not hide the first
// reason.
func (s *Speaker) setWhy(session *session, why string) {
	known := session.why != "" && !strings.HasPrefix(session.why, noConnection)
	if session.why == why || known && why == endedByRouter {
		return
	}
	session.why = why
	s.log.Warn("BGP session does not come up", "peer", session.peer.Name, "address", session.address, "why", why)
}

func attribute(r *slog.Record, key string) (v slog.Value) {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == key {
			v = a.Value
		}
		return a.Key != key
	})
	return v
}

// number returns an attribute that is a byte of a message; 0 if it has another kind.
func number(r *slog.Record, key string) uint8 {
	if v := attribute(r, key); v.Kind() == slog.KindInt64 {
		return uint8(v.Int64())
	}
	return 0
}
