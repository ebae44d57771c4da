package view

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
)

// A request over the socket returns the View, a second listener is refused, and the table shows all
// of it, without control characters.
func TestSocket(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	v := &View{Node: "n", PID: 7, Version: "v1", StartedAt: at, Gateway: "yes", Why: "it is waited for",
		Peers: []Peer{{Speaker: "bgp", Name: "tor", Address: "10.0.0.1", ASN: 64501, Up: true, State: "ESTABLISHED",
			Since: &at, BFD: "up", Routes: 1}},
		VIPs: []VIP{{Address: netip.MustParseAddr("192.0.2.1"), Services: []string{"default/web"}, Pool: "public",
			To: []Line{{Speaker: "bgp", To: "tor", What: "192.0.2.1/32", With: "64500:7", State: Announced},
				{Speaker: "bgp", State: Not, Why: "other family"}}}},
		Problems: []Problem{{Object: "BGPPeer x", Reason: "Invalid", Note: "bad \x1b[31m value"}},
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); Serve(ctx, l, func() *View { return v }, slog.New(slog.DiscardHandler)) }()
	got, err := Ask(ctx, path)
	if diff := gocmp.Diff(v, got, gocmp.Comparer(func(a,
		b netip.Addr) bool {
		return a == b
	})); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "another announcer answers") {
		t.Errorf("a second one: %v", err)
	}
	var b strings.Builder
	if err := Print(&b, v); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"gateway: yes: it is waited for", "established", "192.0.2.1/32", "64500:7",
		"other family", "bad \uFFFD[31m value", "ASN    STATE", "TO   PREFIX        ATTRIBUTES  WHY"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	cancel()
	<-done
	if _, err := Ask(t.Context(), path); err == nil || !strings.Contains(err.Error(), "no announcer answers") {
		t.Errorf("after the end: %v", err)
	}
	b.Reset()
	err = Print(&b, &View{Gateway: "yes"})
	if err != nil || !strings.Contains(b.String(), "The gateway serves no VIP.") {
		t.Errorf("without a VIP: %v\n%s", err, b.String())
	}
}
