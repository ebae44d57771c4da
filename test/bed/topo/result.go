package topo

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Result is the result of a client. It is complete once the call or the flows that made it have
// ended.
type Result struct {
	Requests int64                   // asked, answered or not
	Errors   map[string]int64        // by kind; empty if every answer came and was right
	Shares   map[string]int64        // right answers by backend
	Clients  map[string]int64        // right answers by the client address, without port, that backends saw
	Latency  *hdrhistogram.Histogram // of right answers, in microseconds
	Elapsed  time.Duration
}

// maxKinds bounds the kinds of errors and the backends that are told apart.
const maxKinds = 256

// collector gathers a Result from several goroutines.
type collector struct {
	mu    sync.Mutex
	r     Result
	began time.Time
}

func newCollector() *collector {
	return &collector{began: time.Now(), r: Result{
		Errors: make(map[string]int64), Shares: make(map[string]int64), Clients: make(map[string]int64),
		// 1 us to 2 min, three digits.
		Latency: hdrhistogram.New(1, (2 * time.Minute).Microseconds(), 3),
	}}
}

func (c *collector) answered(backend, client string, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.r.Requests++
	count(c.r.Shares, backend)
	count(c.r.Clients, client)
	// A value beyond two minutes cannot happen: every request has a deadline.
	_ = c.r.Latency.RecordValue(max(1, took.Microseconds()))
}

func (c *collector) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.r.Requests++
	count(c.r.Errors, kindOf(err))
}

func (c *collector) result() *Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.r
	r.Elapsed = time.Since(c.began)
	return &r
}

func count(m map[string]int64, key string) {
	if _, ok := m[key]; !ok && len(m) >= maxKinds {
		key = "other"
	}
	m[key]++
}

// kindOf names an error without ports and addresses, so that equal ones count as one.
func kindOf(err error) string {
	var errno syscall.Errno
	var op *net.OpError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "timeout"
	case errors.As(err, &errno):
		if errors.As(err, &op) {
			return op.Op + ": " + errno.Error()
		}
		return errno.Error()
	}
	return err.Error()
}

// Failed is the number of requests that were not answered rightly.
func (r *Result) Failed() int64 {
	var n int64
	for _, v := range r.Errors {
		n += v
	}
	return n
}

// Deviation is how far the share of the backend that is farthest from its fair
// share is away from it, in standard deviations of a fair draw: for n answers over k
// backends with weights w, sqrt(n p (1-p)) with p = w / sum of w. Backends that are
// not in weights, but answered, are infinitely far.
func (r *Result) Deviation(weights map[string]float64) float64 {
	var n, sum float64
	for backend, v := range r.Shares {
		if weights[backend] <= 0 {
			return math.Inf(1)
		}
		n += float64(v)
	}
	for _, w := range weights {
		sum += w
	}
	worst := 0.0
	for backend, w := range weights {
		p := w / sum
		if p >= 1 || n == 0 {
			continue
		}
		worst = max(worst, math.Abs(float64(r.Shares[backend])-n*p)/math.Sqrt(n*p*(1-p)))
	}
	return worst
}

// String is one line for people.
func (r *Result) String() string {
	return fmt.Sprintf("%d requests, %d errors, %d backends, p50 %d us, p99 %d us, max %d us, %.1f s",
		r.Requests, r.Failed(), len(r.Shares), r.Latency.ValueAtQuantile(50), r.Latency.ValueAtQuantile(99),
		r.Latency.Max(), r.Elapsed.Seconds())
}
