package conformance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/test/bed/topo"
)

// wire is a packet socket on a host's eth0.
type wire struct {
	fd  int
	mac [6]byte
	to  [6]byte // the gateway's
}

func openWire(h *topo.Host, gateway [6]byte) (*wire, error) {
	w := &wire{mac: h.Interfaces[0].MAC, to: gateway}
	err := h.Run(func() (err error) {
		// Another protocol than all, which ETH_P_ALL in network order is.
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
		w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
			int(uint16(all&0xffff)))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	return w, nil
}

func (w *wire) close() { unix.Close(w.fd) }

func (w *wire) send(h *topo.Host, p *headertest.Packet) error { return w.put(h, w.frame(p)) }

// frame is a packet as it goes to the gateway.
func (w *wire) frame(p *headertest.Packet) []byte {
	p.SrcMAC, p.DstMAC = w.mac, w.to
	return p.Bytes()
}

func (w *wire) put(h *topo.Host, frames ...[]byte) error {
	return h.Run(func() error {
		i, err := interfaceIndex("eth0")
		if err != nil {
			return err
		}
		for _, f := range frames {
			if err := unix.Sendto(w.fd, f, 0, &unix.SockaddrLinklayer{Ifindex: i}); err != nil {
				return fmt.Errorf("send: %w", err)
			}
		}
		return nil
	})
}

// seen is the part of an arrived packet that tests look at.
type seen struct {
	src, dst netip.AddrPort
	proto    uint8
	kind     uint8          // SCTP: first chunk; TCP: flags; ICMP: type
	code     uint8          // ICMP
	quoted   netip.AddrPort // ICMP errors: sender of the quoted packet
	rest     uint32         // ICMP: bytes 4 to 7
	seq      uint32         // TCP
	data     []byte         // UDP
	at       int            // which wire
	frame    []byte
}

// look parses a frame without extension headers or options.
func look(frame []byte) (s seen, ok bool) {
	ip := headertest.IP(frame)
	if len(ip) < 28 {
		return s, false
	}
	var payload []byte
	var src, dst netip.Addr
	if ip[0]>>4 == 4 {
		s.proto, payload = ip[9], ip[int(ip[0]&15)*4:]
		src, dst = netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
	} else {
		if len(ip) < 48 {
			return s, false
		}
		s.proto, payload = ip[6], ip[40:]
		src, dst = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
	}
	if len(payload) < 8 {
		return s, false
	}
	s.frame = frame
	ports := func(b []byte) (uint16, uint16) { return binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]) }
	from, to := ports(payload)
	switch s.proto {
	case protoSCTP:
		if len(payload) > 12 {
			s.kind = payload[12]
		}
	case protoUDP:
		s.data = payload[8:]
	case protoTCP:
		if len(payload) > 13 {
			s.kind, s.seq = payload[13], binary.BigEndian.Uint32(payload[4:])
		}
	case protoICMP, protoICMPv6:
		s.kind, s.code, s.rest = payload[0], payload[1], binary.BigEndian.Uint32(payload[4:])
		inner := payload[8:]
		if n := 20; s.proto == protoICMP && len(inner) >= n+4 {
			p, _ := ports(inner[n:])
			s.quoted = netip.AddrPortFrom(netip.AddrFrom4([4]byte(inner[12:16])), p)
		} else if n := 40; s.proto == protoICMPv6 && len(inner) >= n+4 {
			p, _ := ports(inner[n:])
			s.quoted = netip.AddrPortFrom(netip.AddrFrom16([16]byte(inner[8:24])), p)
		}
		from, to = 0, 0
	}
	s.src, s.dst = netip.AddrPortFrom(src, from), netip.AddrPortFrom(dst, to)
	return s, true
}

// craftedSeq is the sequence number of headertest's segments.
const craftedSeq = 0x01020304

// noProtocol reports whether a kernel that knows no SCTP objects to it (RFC 792, RFC 4443
// section 3.4).
func (s *seen) noProtocol() bool {
	return s.proto == protoICMP && s.kind == 3 && s.code == 2 || s.proto == protoICMPv6 && s.kind == 4 && s.code == 1
}

// await waits until a packet that is looked for arrives on any of the wires.
func await(wires []*wire, limit time.Duration, wanted func(*seen) bool) (*seen, error) {
	set := make([]unix.PollFd, len(wires))
	for i, w := range wires {
		set[i] = unix.PollFd{Fd: int32(w.fd), Events: unix.POLLIN}
	}
	for end := time.Now().Add(limit); ; {
		left := time.Until(end)
		if left <= 0 {
			return nil, nil
		}
		if _, err := unix.Poll(set, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("poll: %w", err)
		}
		for i := range set {
			in := make([]byte, 2048)
			n, _, err := unix.Recvfrom(wires[i].fd, in, 0)
			if err != nil { // nothing here
				continue
			}
			if s, ok := look(in[:n]); ok {
				if s.at = i; wanted(&s) {
					return &s, nil
				}
			}
		}
	}
}
