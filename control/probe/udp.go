package probe

import (
	"context"
	"net"
	"net/netip"
	"time"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/nat/proxyproto"
)

// maxDatagrams bounds the datagrams that are read and are no answer, so that a sender of many costs
// little. maxAnswer bounds the bytes of a datagram that are read.
const maxDatagrams, maxAnswer = 32, 4096

// exchange sends a datagram, up to as many times as sends, an every apart, and returns what answers
// it: a datagram from the endpoint that fits, or an ICMP error. Datagrams that do not fit are
// ignored (reads counts them), because their source may be forged. The socket is connected, so the
// kernel drops datagrams from other addresses.
func exchange(ctx context.Context, to netip.AddrPort, message []byte, began time.Time, every time.Duration,
	sends int, fits func([]byte) bool,
) (reads int, err error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	answer := make([]byte, maxAnswer)
	for i := range sends {
		if _, err := c.Write(message); err != nil {
			return reads, err
		}
		_ = c.SetReadDeadline(began.Add(time.Duration(i+1) * every))
		for {
			n, err := c.Read(answer)
			if err != nil && silent(err) {
				break
			}
			if err != nil || fits(answer[:n]) {
				return reads, err
			}
			if reads++; reads >= maxDatagrams {
				return reads, errNoAnswer
			}
		}
	}
	return reads, errNoAnswer
}

// anyDatagram fits: a UDP check does not know what an answer looks like.
func anyDatagram([]byte) bool { return true }

// askUDP fails by an ICMP error such as port unreachable. Silence is a failure only where a reply
// is required.
func askUDP(
	ctx context.Context, to netip.AddrPort, c *objects.Check, began time.Time,
) (detail string, reads int, err error) {
	sends := 1 // an error comes within a round trip
	if c.RequireReply {
		sends = attempts
	}
	datagram := c.Send
	if c.ProxyHeader {
		datagram = proxyproto.Local + datagram
	}
	reads, err = exchange(ctx, to, []byte(datagram), began, c.Timeout/attempts, sends, anyDatagram)
	switch {
	case err == nil:
		return "answered", reads, nil
	case silent(err) && !c.RequireReply:
		return "no ICMP error", reads, nil
	}
	return "", reads, err
}
