package cli

import (
	"context"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"

	"sluice.dev/sluice/gateway/cli/top"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
)

// sending is a gateway whose counters increase from answer to answer.
type sending struct {
	*statustest.Gateway
	answers uint64
}

func (g *sending) Services() []status.ServiceView {
	g.answers++
	list := slices.Clone(g.Gateway.Services())
	list[0].Traffic.ToClientBytes += g.answers << 20
	return list
}

func (g *sending) Stats() status.StatsView {
	g.answers++
	v := g.Gateway.Stats()
	v.Workers = slices.Clone(v.Workers)
	v.Workers[0].Rx += g.answers * 1000
	v.Workers[0].BusyNanos = 5e8 * g.answers
	v.Workers[0].Drops = map[string]uint64{"no_flow": 9 + 20*g.answers, "ttl_exceeded": 7}
	return v
}

func (g *sending) Flows(f *status.FlowFilter, cursor uint64, limit int, page []status.FlowView,
) ([]status.FlowView, uint64) {
	page, next := g.Gateway.Flows(f, cursor, limit, page)
	for i := range page {
		if page[i].Client.Addr() == netip.MustParseAddr("198.51.100.8") {
			g.answers++
			page[i].Traffic = &status.FlowTraffic{ToBackend: 10 * g.answers, ToBackendBytes: 2048 * g.answers}
		}
	}
	return page, next
}

// TestTopScreens draws each screen, and what is behind its first row, after two answers of a daemon
// that are 2 s apart.
func TestTopScreens(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	client := status.NewClient(daemon(t, &sending{Gateway: statustest.New()}))
	for _, size := range [][2]int{{80, 24}, {120, 40}} {
		m := top.NewModel(topScreens(client, announcer(t), func() time.Time { return at }), time.Second)
		head, err := topHead(t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		m.SetHead(head)
		s := tcell.NewSimulationScreen("UTF-8")
		if err := s.Init(); err != nil {
			t.Fatal(err)
		}
		defer s.Fini()
		s.SetSize(size[0], size[1])
		for _, c := range []struct {
			keys string
			want []string
		}{
			{"1", []string{"gw-1 v0.1.0, ready, 2 to look at (1)",
				"Service default/old (old.yaml): spec.sessionAffinity", "warn: no metrics",
				"2 service ports, 4 frontends, 3 backends", "packets in        500/s"}},
			{"2", []string{"BYTES-OUT/s", "512.0KiB", "2/3", "Services, by bytes-out: 2"}},
			{"\r", []string{"Services, by bytes-out > Backends of default/web", "10.1.0.12:8080", "CONNS"}},
			{"3", []string{"[2001:db8:1::11]:8080", "Backends, by conns: 3"}},
			{"\r", []string{"Flows of backend 10.1.0.11:8080", "established", "198.51.100.7:51000"}},
			{"4", []string{"198.51.100.8", "5          1.0KiB", "Clients, by bytes/s: 4"}},
			{"\r", []string{"Flows of client 198.51.100.8", "fin_wait"}},
			{"5", []string{"source_range", "default/web:http  12000", "198.51.100.7 75%", "estimates for 1m0s"}},
			{"6", []string{"25.0%", "RX/s", "500"}},
			{"7", []string{"Routes: 0", "Nothing to show."}},
		} {
			key := tcell.NewEventKey(tcell.KeyRune, rune(c.keys[0]), tcell.ModNone)
			if c.keys == "\r" {
				key = tcell.NewEventKey(tcell.KeyEnter, 0, tcell.ModNone)
			}
			m.Key(key)
			for range 2 {
				at = at.Add(2 * time.Second)
				f, _ := m.Feed()
				apply, err := f.Read(t.Context())
				m.Answer(f, apply, err, at, time.Millisecond)
			}
			text := drawn(m, s)
			for _, want := range c.want {
				want = strings.ReplaceAll(want, ", by bytes-out >", " >")
				if !strings.Contains(text, want) {
					t.Errorf("%v, screen %q lacks %q:\n%s", size, c.keys, want, text)
				}
			}
		}
	}
}

func drawn(m *top.Model, s tcell.SimulationScreen) string {
	m.Draw(s)
	cells, width, _ := s.GetContents()
	var b strings.Builder
	for i, c := range cells {
		b.WriteString(string(c.Runes))
		if i%width == width-1 {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// TestTopNeedsATerminal: what has no terminal, or wants another format, is told what to use.
func TestTopNeedsATerminal(t *testing.T) {
	for args, says := range map[string]string{
		"top":              "top needs a terminal",
		"top -o json":      "`sluice services -o json`",
		"top --every=5":    "write an interval such as",
		"top --every 10ms": "at least 100ms",
		"top now":          "unknown command",
	} {
		code, out, errs := sluice(t, append(strings.Fields(args), "--socket", filepath.Join(t.TempDir(), "none"))...)
		if code != exitUsage || out != "" || !strings.Contains(errs, says) {
			t.Errorf("%s: exit %d, %s%s", args, code, out, errs)
		}
	}
}

// TestTopRoutes: peers and VIPs of an announcer, and an error without one.
func TestTopRoutes(t *testing.T) {
	if _, err := routes(context.Background(), filepath.Join(t.TempDir(), "none")); err == nil ||
		!strings.Contains(err.Error(), "is sluice-announcer running?") {
		t.Errorf("without an announcer: %v", err)
	}
}
