package probe

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/control/endpointhealth"
	"sluice.dev/sluice/control/objects"
)

// BenchmarkTCP is one check by TCP, of 200 that begin together, as they do where 10,000 endpoints
// are checked each 5 s. cpu-ns/op is processor time, that of the endpoints' kernel and of a server
// that accepts included.
func BenchmarkTCP(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	p, err := New(nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	list, err := objects.ParseChecks("tcp")
	if err != nil {
		b.Fatal(err)
	}
	start := endpointhealth.Start{Target: netip.MustParseAddrPort(l.Addr().String()), Check: list[0].Check}
	const together = 200
	before := processorTime(b)
	b.ResetTimer()
	for left := b.N; left > 0; {
		n := min(left, together)
		left -= n
		for range n {
			p.Start(start)
		}
		for n > 0 {
			for _, f := range <-p.Results() {
				if !f.Result.OK {
					b.Fatalf("a check fails: %s", f.Result.Detail)
				}
				n--
			}
		}
	}
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
}

// processorTime is what this process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
