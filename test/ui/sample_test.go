package ui

import (
	"errors"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/gateway/ui"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
)

// hostile is a text that a page shows as it is, unless it parses it as HTML or lets it reorder or
// hide other texts.
const hostile = `<img src=x onerror="window.owned=1"><script>window.owned=1</script>"'&amp;` + "\u202e\x1b[2J\n\u0000"

// hostileShown is the text as the page shows it.
const hostileShown = `<img src=x onerror="window.owned=1"><script>window.owned=1</script>"'&amp;` +
	`\u{202e}\u{1b}[2J\u{a}\u{0}`

// sample is a gateway in memory whose counters grow with each answer.
type sample struct {
	*statustest.Gateway
	answers atomic.Uint64
}

func newSample() *sample {
	g := &sample{Gateway: statustest.New()}
	list := g.StatusView.Interfaces
	g.StatusView.Interfaces = slices.Clone(list)
	return g
}

// Stats implements status.Gateway: some traffic, in waves.
func (g *sample) Stats() status.StatsView {
	n := float64(g.answers.Add(1))
	v := g.Gateway.Stats()
	v.Workers = slices.Clone(v.Workers)
	for i := range v.Workers {
		w := &v.Workers[i]
		grown := func(perAnswer float64) uint64 {
			return uint64(perAnswer * (n + 2*math.Sin(n/4+float64(i)) + 0.5*math.Sin(n/2.3)))
		}
		w.Rx, w.Tx = w.Rx+grown(4.1e6), w.Tx+grown(4.0e6)
		w.RxBytes, w.TxBytes = w.RxBytes+grown(1.9e9), w.TxBytes+grown(1.8e9)
		w.FlowsCreated, w.Dropped = w.FlowsCreated+grown(42e3), w.Dropped+grown(310)
		w.BusyNanos += grown(5.2e8 * proxyStep)
	}
	return v
}

// proxyStep is the time from one answer to the next that a page of the sample sees: so charts of
// five minutes are full after a minute.
const proxyStep = 5

// serve serves the page of a gateway in memory, and returns its URL and functions that stop and
// start the gateway. fast makes the time of answers run faster.
func serve(t *testing.T, g status.Gateway, fast bool) (address string, stop, start func()) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	var server *status.Server
	done := make(chan error, 1)
	start = func() {
		l, err := status.Listen(socket)
		if err != nil {
			t.Fatal(err)
		}
		server = status.NewServer(g, slog.New(slog.DiscardHandler))
		go func() { done <- server.Serve(l) }()
	}
	stop = func() {
		if err := errors.Join(server.Shutdown(t.Context()), <-done); err != nil {
			t.Error(err)
		}
	}
	start()
	t.Cleanup(func() { _ = server.Shutdown(t.Context()) })
	page, err := ui.New(status.NewClient(socket))
	if err != nil {
		t.Fatal(err)
	}
	l, err := ui.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		if err := page.Serve(t.Context(), l); err != nil {
			t.Error(err)
		}
	}()
	address = page.URL(l)
	if fast {
		address = hasten(t, address)
	}
	return address, stop, start
}

// hasten returns the URL of a proxy in front of a page: each second of its answers is proxyStep
// ones.
func hasten(t *testing.T, address string) string {
	t.Helper()
	to, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", to.Host, r.In.Host
		},
		ModifyResponse: func(r *http.Response) error {
			at := float64(began.UnixMicro())/1e6 + proxyStep*time.Since(began).Seconds()
			r.Header.Set("Sluice-Time", strconv.FormatFloat(at, 'f', 6, 64))
			return nil
		},
	}
	s := http.Server{Handler: proxy}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	return "http://" + l.Addr().String() + to.Path
}
