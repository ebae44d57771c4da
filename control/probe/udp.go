package probe

import (
	"context"
	"net"
	"net/netip"

	"sluice.dev/sluice/control/objects"
)

// maxRead is how many datagrams that are no answer are read, so that whoever sends many costs
// little.
const maxRead = 100

// exchange sends a datagram, and returns what answers it: a datagram from the endpoint that fits,
// or an ICMP error. Those that do not fit are left aside, as anybody may send them in the
// endpoint's name. The socket is connected, so the kernel passes on none in another name.
func exchange(
	ctx context.Context, to netip.AddrPort, message, answer []byte, fits func([]byte) bool,
) (n int, err error) {
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
	for range maxRead {
		n, err = c.Read(answer)
		if err != nil && ctx.Err() != nil {
			break
		}
		if err != nil || fits(answer[:n]) {
			return n, err
		}
	}
	return 0, errNoAnswer
}

// anyDatagram fits: a UDP check does not know what an answer looks like.
func anyDatagram([]byte) bool { return true }

// askUDP fails by an ICMP error such as port unreachable. Silence is a failure only where a reply
// is required.
func askUDP(ctx context.Context, to netip.AddrPort, c *objects.Check) (string, error) {
	if !c.RequireReply {
		// An error comes within a round trip.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Timeout/attempts)
		defer cancel()
	}
	_, err := exchange(ctx, to, []byte(c.Send), make([]byte, 1500), anyDatagram)
	switch {
	case err == nil:
		return "answered", nil
	case silent(err) && !c.RequireReply:
		return "no ICMP error", nil
	}
	return "", err
}
