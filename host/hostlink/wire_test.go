//go:build root

package hostlink

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// wire is a packet socket that replaces the AF_XDP sockets on the user end.
type wire struct{ fd, index int }

func openWire(t *testing.T, index int) *wire {
	t.Helper()
	all := binary.BigEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
	protocol := int(all>>8 | all<<8) // network order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: index, Protocol: uint16(protocol)}); err != nil {
		t.Fatal(err)
	}
	timeout := unix.NsecToTimeval(int64(time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		t.Fatal(err)
	}
	return &wire{fd, index}
}

// receive returns the first frame that carries the payload.
func (w *wire) receive(t *testing.T, payload string) []byte {
	t.Helper()
	in := make([]byte, 2048)
	for {
		n, _, err := unix.Recvfrom(w.fd, in, 0)
		if err != nil {
			t.Fatalf("no frame with %q: %v", payload, err)
		}
		if bytes.HasSuffix(in[:n], []byte(payload)) {
			return in[:n]
		}
	}
}

func (w *wire) send(t *testing.T, frame []byte) {
	t.Helper()
	if err := unix.Sendto(w.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: w.index}); err != nil {
		t.Fatal(err)
	}
}

// udpFrame returns the frame of a datagram from src port 9, as a worker would send it.
func udpFrame(h *HostLink, src netip.Addr, dst netip.AddrPort, payload []byte) []byte {
	f := append(append([]byte{}, h.KernelMAC[:]...), h.MAC[:]...)
	udp := binary.BigEndian.AppendUint16(nil, 9)
	udp = binary.BigEndian.AppendUint16(udp, dst.Port())
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(payload)))
	udp = append(append(udp, 0, 0), payload...)
	pseudo := append(src.AsSlice(), dst.Addr().AsSlice()...)
	pseudo = append(pseudo, 0, unix.IPPROTO_UDP, 0, byte(len(udp)))
	binary.BigEndian.PutUint16(udp[6:], checksum(append(pseudo, udp...)))
	if src.Is4() {
		ip := []byte{0x45, 0, 0, byte(20 + len(udp)), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
		ip = append(append(ip, src.AsSlice()...), dst.Addr().AsSlice()...)
		binary.BigEndian.PutUint16(ip[10:], checksum(ip))
		return append(append(append(f, 0x08, 0x00), ip...), udp...)
	}
	ip := []byte{0x60, 0, 0, 0, 0, byte(len(udp)), unix.IPPROTO_UDP, 64}
	ip = append(append(ip, src.AsSlice()...), dst.Addr().AsSlice()...)
	return append(append(append(f, 0x86, 0xdd), ip...), udp...)
}

// checksum returns the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
