package topo

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/test/bed/machine"
)

// HTTPLoad is a number of requests, each over a new connection.
type HTTPLoad struct {
	Targets     []netip.AddrPort // taken in turn
	Requests    int
	Concurrency int           // connections at a time, 1
	Timeout     time.Duration // of one request, 5 s
	Interval    time.Duration // pause of each of the Concurrency clients between two requests
}

// maxConcurrency bounds the connections of one load: each takes a thread.
const maxConcurrency = 256

// HTTP sends the requests from the host and returns when all are answered or
// failed, or ctx is done.
func (h *Host) HTTP(ctx context.Context, l HTTPLoad) (*Result, error) {
	if l.Concurrency == 0 {
		l.Concurrency = 1
	}
	if l.Timeout == 0 {
		l.Timeout = machine.Slower(5 * time.Second)
	}
	if len(l.Targets) == 0 || l.Requests < 1 || l.Concurrency < 1 || l.Concurrency > maxConcurrency {
		return nil, fmt.Errorf("%s: http: %d targets, %d requests, %d at a time (1 to %d)",
			h.Name, len(l.Targets), l.Requests, l.Concurrency, maxConcurrency)
	}
	c := newCollector()
	var next atomic.Int64
	var clients sync.WaitGroup
	errs := make([]error, l.Concurrency)
	for i := range l.Concurrency {
		clients.Go(func() {
			// The whole loop runs inside, so a connection costs no thread change.
			errs[i] = h.Run(func() error {
				for ctx.Err() == nil {
					k := next.Add(1) - 1
					if k >= int64(l.Requests) {
						return nil
					}
					l.one(ctx, c, l.Targets[k%int64(len(l.Targets))])
					_ = Pause(ctx, l.Interval)
				}
				return nil
			})
		})
	}
	clients.Wait()
	return c.result(), errors.Join(errs...)
}

// Get requests a page over a connection of its own, and returns its status and its body.
func Get(
	ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error), url string,
) (status int, body string, err error) {
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true,
		DisableCompression: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	r, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return r.StatusCode, string(text), err
}

// Get requests a page from the host.
func (h *Host) Get(ctx context.Context, url string) (status int, body string, err error) {
	return Get(ctx, h.Dial, url)
}

// Pause waits for a time. It returns early, with its error, when ctx is done.
func Pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// one is one request over a connection of its own. It runs in the namespace.
func (l *HTTPLoad) one(ctx context.Context, c *collector, target netip.AddrPort) {
	began := time.Now()
	d := net.Dialer{Deadline: began.Add(l.Timeout), KeepAlive: -1}
	conn, err := d.DialContext(ctx, "tcp", target.String())
	if err != nil {
		if ctx.Err() == nil {
			c.failed(err)
		}
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(began.Add(l.Timeout)) // cannot fail on an open connection
	backend, client, err := ask(conn, bufio.NewReader(conn), target, true)
	if err != nil {
		c.failed(err)
		return
	}
	c.answered(backend, client, time.Since(began))
}

// ask sends GET / and checks the answer: header and body must name one backend.
func ask(w io.Writer, r *bufio.Reader, target netip.AddrPort, last bool) (backend, client string, err error) {
	connection := "keep-alive"
	if last {
		connection = "close"
	}
	if _, err := fmt.Fprintf(w, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: %s\r\n\r\n", target,
		connection); err != nil {
		return "", "", err
	}
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return "", "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil {
		return "", "", err
	}
	backend = resp.Header.Get(BackendHeader)
	name, address, _ := strings.Cut(strings.TrimSpace(string(body)), " ")
	if resp.StatusCode != http.StatusOK || backend == "" || name != backend {
		return "", "", fmt.Errorf("wrong answer: status %d", resp.StatusCode)
	}
	seen, err := netip.ParseAddrPort(address)
	if err != nil {
		return "", "", errors.New("wrong answer: no client address")
	}
	return backend, seen.Addr().String(), nil
}

// Transfer is one large body over one connection.
type Transfer struct {
	Backend string
	Bytes   int64
	Elapsed time.Duration
	Sum     string // SHA-256, equal at both ends
}

// Download fetches n bytes and compares the received bytes with the sent ones.
func (h *Host) Download(ctx context.Context, target netip.AddrPort, n int64) (*Transfer, error) {
	return h.download(ctx, h.Dial, target, n)
}

// dialContext is http.Transport's.
type dialContext func(ctx context.Context, network, address string) (net.Conn, error)

func (h *Host) download(ctx context.Context, dial dialContext, target netip.AddrPort, n int64) (*Transfer, error) {
	url := fmt.Sprintf("http://%s/bytes?n=%d&seed=%d", target, n, n)
	sum := sha256.New()
	return h.transfer(ctx, dial, http.MethodGet, url, nil, func(resp *http.Response) (string, int64, error) {
		got, err := io.Copy(sum, resp.Body)
		if err != nil {
			return "", got, err
		}
		if got != n || resp.Trailer.Get(SumTrailer) != sumText(sum) {
			return "", got, fmt.Errorf("%d of %d bytes arrived; SHA-256 sent %q, received %q", got, n,
				resp.Trailer.Get(SumTrailer), sumText(sum))
		}
		return sumText(sum), got, nil
	})
}

// Upload sends n bytes and compares the bytes that the backend received with the sent ones.
func (h *Host) Upload(ctx context.Context, target netip.AddrPort, n int64) (*Transfer, error) {
	return h.upload(ctx, h.Dial, target, n)
}

func (h *Host) upload(ctx context.Context, dial dialContext, target netip.AddrPort, n int64) (*Transfer, error) {
	sum := sha256.New()
	body := io.TeeReader(randomBytes(n, uint64(n)), sum)
	return h.transfer(ctx, dial, http.MethodPost, fmt.Sprintf("http://%s/sum", target), body,
		func(resp *http.Response) (string, int64, error) {
			text, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
			if err != nil {
				return "", 0, err
			}
			if want := fmt.Sprintf("%s %d\n", sumText(sum), n); string(text) != want {
				return "", 0, fmt.Errorf("the backend received %q, sent was %q", text, want)
			}
			return sumText(sum), n, nil
		})
}

func (h *Host) transfer(ctx context.Context, dial dialContext, method, url string, body io.Reader,
	check func(*http.Response) (string, int64, error)) (*Transfer, error) {
	began := time.Now()
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true,
		DisableCompression: true}}
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.Name, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.Name, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s %s: status %s", h.Name, method, url, resp.Status)
	}
	sum, n, err := check(resp)
	if err != nil {
		return nil, fmt.Errorf("%s: %s %s: %w", h.Name, method, url, err)
	}
	return &Transfer{Backend: resp.Header.Get(BackendHeader), Bytes: n, Elapsed: time.Since(began), Sum: sum}, nil
}
