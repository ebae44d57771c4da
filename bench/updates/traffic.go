package updates

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/observer"
	"sluice.dev/sluice/test/bed/topo"
)

// probes send datagrams to the probed Services and record where they arrive.
type probes struct {
	versions []*versions
	tap      *observer.Tap
	sink     net.PacketConn
	apart    []time.Duration // of rounds of datagrams; one goroutine writes it
}

// newProbes adds the addresses of all versions to the backend, and a socket for them, so that
// datagrams cause no ICMP errors. Nothing reads the socket.
func newProbes(services int, gateway, backend *topo.Host) (*probes, error) {
	p := &probes{}
	all := netip.MustParsePrefix("10.244.0.0/16")
	if err := errors.Join(gateway.Route(all, backend.Addr4()), backend.Route(all, netip.Addr{})); err != nil {
		return nil, fmt.Errorf("addresses of versions: %w", err)
	}
	var err error
	if p.sink, err = backend.ListenPacket("udp4", netip.AddrPortFrom(netip.IPv4Unspecified(),
		podPort).String()); err != nil {
		return nil, err
	}
	for i := range services {
		p.versions = append(p.versions, &versions{service: i})
	}
	p.tap, err = observer.Datagrams(backend, "eth0", podPort, func(packet observer.Packet) {
		// Other datagrams to this port are to the host's own address.
		if to := packet.Dst.Addr(); all.Contains(to) && int(to.As4()[2]) < services {
			p.versions[to.As4()[2]].arrived(packet.At, to)
		}
	})
	return p, err
}

// send sends to each Service in turn, on one socket each, until ctx is done.
func (p *probes) send(ctx context.Context, client *topo.Host, every time.Duration) error {
	var sockets []net.Conn
	defer func() {
		for _, c := range sockets {
			c.Close()
		}
	}()
	for i := range p.versions {
		c, err := client.Dial(ctx, "udp4", netip.AddrPortFrom(cluster.NumberedVIP(i), servicePort).String())
		if err != nil {
			return err
		}
		sockets = append(sockets, c)
	}
	last := time.Now()
	for next := last; ctx.Err() == nil; {
		rest(time.Until(next))
		now := time.Now()
		if next = next.Add(every); next.Before(now) {
			next = now.Add(every) // late: no burst to catch up
		}
		p.apart = append(p.apart, now.Sub(last))
		last = now
		for _, c := range sockets {
			if _, err := c.Write([]byte("probe")); err != nil && ctx.Err() == nil {
				return fmt.Errorf("probe: %w", err)
			}
		}
	}
	return nil
}

// rest sleeps with a kernel timer: the timers of Go's runtime have the resolution of epoll_wait, a
// millisecond.
func rest(d time.Duration) {
	if d > 0 {
		t := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&t, nil) // a signal may wake it early
	}
}

// arrived reports whether each Service's first version was seen.
func (p *probes) arrived() bool {
	return !slices.ContainsFunc(p.versions, func(v *versions) bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		return len(v.seen) == 0
	})
}

func (p *probes) close() error {
	var err error
	if p.tap != nil {
		missed, closed := p.tap.Close()
		if err = closed; missed > 0 {
			err = errors.Join(err, fmt.Errorf("the tap missed %d packets", missed))
		}
	}
	if p.sink != nil {
		p.sink.Close()
	}
	return err
}

// quantiles sorts a list and returns its quantiles.
func quantiles(list []time.Duration) (q Quantiles) {
	if len(list) == 0 {
		return q
	}
	slices.Sort(list)
	at := func(per1000 int) time.Duration { return list[min(len(list)*per1000/1000, len(list)-1)] }
	return Quantiles{Count: len(list), P50: at(500), P99: at(990), P999: at(999), Max: list[len(list)-1]}
}

// Quantiles of times.
type Quantiles struct {
	Count               int
	P50, P99, P999, Max time.Duration
}

func (q Quantiles) String() string {
	ms := func(d time.Duration) string {
		return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%s, %s, %s, %s ms", ms(q.P50), ms(q.P99), ms(q.P999), ms(q.Max))
}
