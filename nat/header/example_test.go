package header_test

import (
	"fmt"
	"net/netip"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// end returns an address and port in the form of package netip.
func end(a header.Addr, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(a).Unmap(), port)
}

// Parse reads one frame into a Packet: source and destination, and the start of each header. It
// keeps no reference to the frame and does not allocate.
func ExampleParse() {
	frame := headertest.TCP("198.51.100.7:40000", "203.0.113.10:80", header.TCPSYN).Bytes()

	var p header.Packet
	if drop := header.Parse(frame, &p); drop != reason.None {
		fmt.Println("drop:", drop)
		return
	}
	t := &p.Tuple
	fmt.Println(end(t.Src, t.SrcPort), "to", end(t.Dst, t.DstPort))
	fmt.Println("opens a connection:", p.TCPFlags&header.TCPSYN != 0)
	fmt.Println("IP at byte", p.L3, "TCP at byte", p.L4, "the packet ends at byte", p.End)
	// Output:
	// 198.51.100.7:40000 to 203.0.113.10:80
	// opens a connection: true
	// IP at byte 14 TCP at byte 34 the packet ends at byte 54
}

// For a packet that no gateway may forward, Parse returns not an error but the drop reason under
// which it is counted.
func ExampleParse_reasons() {
	good := headertest.UDP("198.51.100.7:40000", "203.0.113.10:53", "query").Bytes()
	truncated := good[:40]
	corrupt := append([]byte(nil), good...)
	corrupt[24] ^= 0xff // the IPv4 header checksum
	martian := headertest.UDP("127.0.0.1:40000", "203.0.113.10:53", "query").Bytes()

	for _, frame := range [][]byte{good, truncated, corrupt, martian} {
		var p header.Packet
		fmt.Println(header.Parse(frame, &p))
	}
	// Output:
	// none
	// frame_truncated
	// ipv4_checksum
	// martian_source
}

// A packet of a flow leaves with another tuple than it arrived with. The delta of its checksums
// depends only on the tuples, so it is computed once for a flow; the other direction uses the
// reverse.
func ExampleDeltaOf() {
	arrives := header.Tuple{
		Src: header.AddrFrom4([4]byte{198, 51, 100, 7}), SrcPort: 40000,
		Dst: header.AddrFrom4([4]byte{203, 0, 113, 10}), DstPort: 80,
		Proto: header.ProtoTCP,
	}
	leaves := header.Tuple{
		Src: header.AddrFrom4([4]byte{10, 0, 1, 2}), SrcPort: 21360,
		Dst: header.AddrFrom4([4]byte{10, 0, 1, 12}), DstPort: 8080,
		Proto: header.ProtoTCP,
	}
	there := header.DeltaOf(&arrives, &leaves)

	// The reply arrives with the reverse of the tuple that left, and leaves with the reverse of the
	// tuple that arrived.
	replyArrives, replyLeaves := leaves.Reverse(), arrives.Reverse()
	back := header.DeltaOf(&replyArrives, &replyLeaves)
	fmt.Println(there.Reverse() == back)
	// Output: true
}
