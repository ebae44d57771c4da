package guest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/test/bed/topo"
)

const (
	ethernetBytes = 14
	ipv4Bytes     = 20 // RFC 791, without options
	ipv6Bytes     = 40 // RFC 8200, section 3
	udpBytes      = 8  // RFC 768
	leastFrame    = 60 // without FCS
	etherMTU      = 1500
	maxDatagram   = 1 << 14 // more than is sent
)

// serveEcho answers each datagram of a host's addresses with its complement, so that an answer is
// recognisable as a server's, and of the same size. It ends with the process.
func serveEcho(h *topo.Host, port uint16) error {
	for _, a := range []netip.Addr{h.Addr4(), h.Addr6()} {
		c, err := h.ListenPacket("udp", netip.AddrPortFrom(a, port).String())
		if err != nil {
			return err
		}
		go func() {
			b := make([]byte, maxDatagram)
			for {
				n, from, err := c.ReadFrom(b)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err == nil { // else an ICMP error about an earlier answer
					_, _ = c.WriteTo(complement(b[:n]), from)
				}
			}
		}()
	}
	return nil
}

func complement(b []byte) []byte {
	c := make([]byte, len(b))
	for i := range b {
		c[i] = ^b[i]
	}
	return c
}

// datagram is a payload that no other size shares a piece of.
func datagram(size int) []byte {
	b := make([]byte, size)
	x := uint32(size)*2654435761 + 1
	for i := range b {
		x = x*1664525 + 1013904223 // any generator will do
		b[i] = byte(x >> 24)
	}
	return b
}

// window is how many datagrams are under way at a time: fewer than any ring has slots.
const window = 16

// attempts are how often a size is tried: an overloaded guest may lose a datagram, a gateway that
// cannot forward a size loses each.
const attempts = 3

// sizes sends a datagram of each size of interest to a VIP and wants each back: from the smallest
// Ethernet frame to the MTU, and one byte more, which the sender's kernel makes two fragments of.
func (l *lab) sizes(vip string) (string, error) {
	to := at(vip, echoPort)
	headers := ipv4Bytes + udpBytes
	if to.Addr().Is6() {
		headers = ipv6Bytes + udpBytes
	}
	first, last := max(0, leastFrame-ethernetBytes-headers), l.MTU-headers
	conn, err := l.Clients[0].Dial(l.ctx, "udp", to.String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	var todo []int
	for size := first; size <= last+1; size++ {
		if ofInterest(size+headers+ethernetBytes, l.MTU+ethernetBytes) {
			todo = append(todo, size)
		}
	}
	again, count := 0, len(todo)
	for range attempts {
		var left []int
		for chunk := range slices.Chunk(todo, window) {
			unanswered, err := l.exchange(conn, chunk)
			if err != nil {
				return "", err
			}
			if left = append(left, unanswered...); len(left) > 4*window {
				return "", fmt.Errorf("UDP to %s: no answer to payloads of %s bytes; tried no more", to, ranges(left))
			}
		}
		again += len(left)
		if todo = left; len(todo) == 0 {
			break
		}
	}
	if len(todo) > 0 {
		return "", fmt.Errorf("UDP to %s: no answer to payloads of %s bytes in %d attempts", to, ranges(todo), attempts)
	}
	return fmt.Sprintf("%d lengths of frames from %d to %d bytes, the last of them 2 fragments; %d sent again",
		count, first+headers+ethernetBytes, last+headers+ethernetBytes+1, again), nil
}

// ofInterest reports whether a frame of so many bytes is tried: every length that Ethernet has
// without jumbo frames; of longer ones those around each multiple of 128 bytes, where the buffers
// of any driver end, and around the longest.
func ofInterest(frame, longest int) bool {
	const step, around = 128, 2
	beside := (frame + around) % step
	return frame <= etherMTU+ethernetBytes+1 || beside <= 2*around || frame >= longest-around
}

// exchange sends datagrams of some sizes and returns the sizes that were not answered in time.
func (l *lab) exchange(conn net.Conn, sizes []int) (unanswered []int, err error) {
	missing := map[int]bool{}
	for _, size := range sizes {
		if _, err := conn.Write(datagram(size)); err != nil {
			return nil, fmt.Errorf("send %d bytes: %w", size, err)
		}
		missing[size] = true
	}
	if err := conn.SetReadDeadline(time.Now().Add(l.patience(time.Second))); err != nil {
		return nil, err
	}
	in := make([]byte, maxDatagram)
	for len(missing) > 0 {
		n, err := conn.Read(in)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(complement(in[:n]), datagram(n)) {
			return nil, fmt.Errorf("a datagram of %d bytes came back changed", n)
		}
		delete(missing, n) // absent: the answer to an earlier attempt
	}
	for _, size := range sizes {
		if missing[size] {
			unanswered = append(unanswered, size)
		}
	}
	return unanswered, nil
}

// ranges writes ascending numbers as "1-3, 7".
func ranges(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, fmt.Sprint(numbers[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", numbers[i], numbers[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ", ")
}
