package allocate

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sluice.dev/sluice/internal/wake"
)

// TestLeaderWithoutPools: a leader is not ready, with the reason, until pools are listed: while the
// API server does not have the kind, and while it refuses to list it. A process that does not lead
// is ready, and so is a leader that gives addresses, also if there is no pool.
func TestLeaderWithoutPools(t *testing.T) {
	t.Parallel()
	m := &Metrics{}
	ready := func(when, want string) {
		t.Helper()
		got := strings.Join(m.NotReady(), "; ")
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	ready("it does not lead", "")
	api := httptest.NewServer(http.NotFoundHandler())
	defer api.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	p := &poolSource{config: Config{Log: slog.New(slog.DiscardHandler), Metrics: m}, client: client}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	ended := make(chan error, 1)
	go func() { ended <- p.start(ctx, &running) }()
	for end := time.Now().Add(10 * time.Second); len(m.NotReady()) == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	ready("no such kind", "no addresses yet: addresspools.sluice.dev are not listed: the API server does not have")
	cancel()
	<-ended
	running.Wait()
	p.notListed(addressPools, wake.NewFlag())(errors.New("forbidden"), true, true)
	ready("forbidden", "addresspools.sluice.dev are not listed: forbidden")
	m.leads(&controller{})
	ready("it gives addresses", "")
	p.notListed(ipAddressPools, wake.NewFlag())(errors.New("forbidden"), false, true)
	ready("MetalLB's pools are not listed", "")
}
