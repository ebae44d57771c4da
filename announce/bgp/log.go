package bgp

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	wire "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// listener is the handler of what GoBGP logs. It passes on warnings: what GoBGP says of each step
// of a session is logged by the Speaker, once. And it is the only place where GoBGP says why a
// session that was never up does not come up: its events have nothing of that, as it stays in state
// Active meanwhile (outgoingConnManager in GoBGP's pkg/server/fsm.go). TestNeverUp holds its words.
type listener struct {
	slog.Handler
	peer  netip.Addr                                      // what the logger is about; not valid: no peer
	notUp func(peer netip.Addr, at time.Time, why string) // is told why a session does not come up
}

func newListener(to slog.Handler, notUp func(netip.Addr, time.Time, string)) *listener {
	return &listener{Handler: to, notUp: notUp}
}

// Enabled implements slog.Handler: what is not passed on is listened to.
func (l *listener) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs implements slog.Handler.
func (l *listener) WithAttrs(attributes []slog.Attr) slog.Handler {
	with := *l
	with.Handler = l.Handler.WithAttrs(attributes)
	for _, a := range attributes {
		if a.Key == "Key" { // not an address in loggers of other things than peers
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

// endedByRouter is all that is known where GoBGP does not read on: the router ended the connection,
// or sent a NOTIFICATION in place of what was expected.
const endedByRouter = "the router ended the connection before the session was up: its log has the reason"

// noConnection begins what is said where the router does not accept a TCP connection.
const noConnection = "no TCP connection: "

// whyNotUp is what a record says, in words of this side; empty: nothing.
func whyNotUp(r *slog.Record) string {
	switch r.Message {
	case "failed to connect":
		why := attribute(r, "Error").String()
		if strings.HasPrefix(why, "dial tcp ") { // and both ends, which the table of peers has
			_, why, _ = strings.Cut(why, ": ")
		}
		return noConnection + strings.TrimPrefix(why, "connect: ")
	case "sent notification":
		code, subcode := number(r, "Code"), number(r, "Subcode")
		switch code {
		case wire.BGP_ERROR_CEASE:
			return "" // this side ends the session, and begins another one
		case wire.BGP_ERROR_FSM_ERROR:
			return endedByRouter
		case wire.BGP_ERROR_HOLD_TIMER_EXPIRED:
			return "the router accepts the connection, and sends no OPEN"
		}
		return "refused by this side: " + wire.NewNotificationErrorCode(code, subcode).String()
	}
	return endedByRouter
}

// notOpened is why a session ended that was not up, in GoBGP's words and ours.
func notOpened(reason string) string {
	if reason == "invalid-msg" || reason == "read-failed" {
		return endedByRouter
	}
	return "not opened: " + reason
}

// notUp takes why a session does not come up. It is called by goroutines of GoBGP.
func (s *Speaker) notUp(peer netip.Addr, at time.Time, why string) {
	s.mu.Lock()
	for _, session := range s.sessions {
		if !session.up && session.hears(peer, at) {
			s.setWhy(session, why)
		}
	}
	s.mu.Unlock()
	s.changed.Raise()
}

// setWhy says why a session that was not up did not come up; s.mu is held. A router that ended a
// session, or was refused, closes new connections for a time: that does not hide the reason.
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

// number is an attribute that is a byte of a message; 0 if it is something else.
func number(r *slog.Record, key string) uint8 {
	if v := attribute(r, key); v.Kind() == slog.KindInt64 {
		return uint8(v.Int64())
	}
	return 0
}
