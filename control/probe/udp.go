package probe

import (
	"context"
	"net"
	"net/netip"

	"sluice.dev/sluice/control/objects"
)

// exchange sends a datagram, and returns what answers it: a datagram from the endpoint, or an ICMP
// error. The socket is connected, so the kernel passes on no others.
func exchange(ctx context.Context, to netip.AddrPort, message, answer []byte) (n int, err error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", to.String())
	if err != nil {
		return 0, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if _, err := c.Write(message); err != nil {
		return 0, err
	}
	n, err = c.Read(answer)
	if err != nil && ctx.Err() != nil {
		return 0, errNoAnswer
	}
	return n, err
}

// askUDP fails by an ICMP error such as port unreachable. Silence is a failure only where a reply
// is required.
func askUDP(ctx context.Context, to netip.AddrPort, c *objects.Check) (string, error) {
	if !c.RequireReply {
		// An error comes within a round trip.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Timeout/attempts)
		defer cancel()
	}
	_, err := exchange(ctx, to, []byte(c.Send), make([]byte, 1500))
	switch {
	case err == nil:
		return "answered", nil
	case silent(err) && !c.RequireReply:
		return "no ICMP error", nil
	}
	return "", err
}
