package status_test

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
)

// untilWritten calls done when something is written.
type untilWritten struct {
	got  []byte
	done func()
}

func (w *untilWritten) Write(b []byte) (int, error) {
	defer w.done()
	w.got = append(w.got, b...)
	return len(b), nil
}

// TestCapture: the client gets what the gateway writes while the capture goes on, ends it, and then
// gets the counts.
func TestCapture(t *testing.T) {
	g := statustest.New()
	g.CaptureBytes = []byte("a capture")
	c, _ := serve(t, g)
	stop, cancel := context.WithCancel(t.Context())
	out := &untilWritten{done: cancel}
	v, err := c.Capture(stop, status.CaptureQuery{Rate: 1}, out)
	if want := (status.CaptureView{Records: 2, OverRate: 3, Lost: 1}); err != nil || v != want {
		t.Errorf("got %+v, %v", v, err)
	}
	if string(out.got) != "a capture" {
		t.Errorf("got %q", out.got)
	}
}

// TestCaptureEnds: the gateway ends a capture with a reason, or refuses it.
func TestCaptureEnds(t *testing.T) {
	g := statustest.New()
	g.CaptureBytes, g.CaptureEnds = []byte("x"), "a hand-over"
	c, _ := serve(t, g)
	var out bytes.Buffer
	if v, err := c.Capture(t.Context(), status.CaptureQuery{}, &out); err != nil || v.Ended != "a hand-over" {
		t.Errorf("got %+v, %v", v, err)
	}
	g.Err = errors.New("four captures are running")
	if _, err := c.Capture(t.Context(), status.CaptureQuery{}, &out); err == nil || err.Error() != g.Err.Error() {
		t.Errorf("got %v", err)
	}
	c = status.NewClient(t.TempDir() + "/none")
	if _, err := c.Capture(t.Context(), status.CaptureQuery{}, &out); !errors.Is(err, status.ErrNotRunning) {
		t.Errorf("without a daemon: %v", err)
	}
}

// TestCaptureOfLostClient: a client that goes away ends its capture.
func TestCaptureOfLostClient(t *testing.T) {
	g := &waitingGateway{Gateway: statustest.New(), ended: make(chan struct{})}
	g.CaptureBytes = []byte("x")
	c, _ := serve(t, g)
	if _, err := c.Capture(t.Context(), status.CaptureQuery{}, failing{}); err == nil {
		t.Error("no error")
	}
	select {
	case <-g.ended:
	case <-time.After(10 * time.Second):
		t.Error("the capture goes on")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// waitingGateway closes ended at the end of a capture, and keeps its query.
type waitingGateway struct {
	*statustest.Gateway
	ended chan struct{}
	query status.CaptureQuery
}

func (g *waitingGateway) Capture(
	ctx context.Context, q *status.CaptureQuery, out status.CaptureWriter,
) (status.CaptureView, error) {
	defer close(g.ended)
	g.query = *q
	return g.Gateway.Capture(ctx, q, out)
}

// TestCaptureQuery: each field of a query arrives.
func TestCaptureQuery(t *testing.T) {
	g := &waitingGateway{Gateway: statustest.New(), ended: make(chan struct{})}
	g.CaptureBytes, g.CaptureEnds = []byte("x"), "at once"
	endpoint := func(s string) status.Endpoint {
		e, err := status.ParseEndpoint(s)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	want := status.CaptureQuery{Client: endpoint("198.51.100.0/24"), VIP: endpoint("203.0.113.10:80"),
		Backend: endpoint("[2001:db8::1]:8080"), Service: "shop/web:http", Drops: []string{"no_flow", "no_route"},
		Program: []uint32{1, 6, 0, 0, 262144}, Snap: 96, Rate: 500}
	c, _ := serve(t, g)
	if _, err := c.Capture(t.Context(), want, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(g.query, want) {
		t.Errorf("got  %+v\nwant %+v", g.query, want)
	}
	if _, err := status.ParseProgram("1 x"); err == nil || !strings.Contains(err.Error(), `"x"`) {
		t.Errorf("got %v", err)
	}
}
