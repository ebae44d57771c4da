package header_test

import (
	"testing"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// The flags for every chunk type of RFC 9260, and for some of extensions.
func TestParseSCTPChunks(t *testing.T) {
	const ack = header.TCPACK
	meaning := map[uint8]uint8{
		0: ack, header.SCTPInit: header.TCPSYN, header.SCTPInitAck: header.TCPSYN | ack, 3: ack, 4: ack, 5: ack,
		header.SCTPAbort: header.TCPRST, header.SCTPShutdown: header.TCPFIN | ack,
		header.SCTPShutdownAck: header.TCPFIN | ack,
		9:                      ack, header.SCTPCookieEcho: ack, header.SCTPCookieAck: ack, 12: ack, 13: ack,
		header.SCTPShutdownComplete: ack,
		15:                          ack, 0x40: ack, 0x80: ack, 0x82: ack, 0xc0: ack, 0xc1: ack, 255: ack,
	}
	for _, e := range [][2]string{{client4, vip4}, {client6, vip6}} {
		for chunk, want := range meaning {
			frame := headertest.SCTP(e[0], e[1], chunk).Bytes()
			var p header.Packet
			if drop := header.Parse(frame, &p); drop != reason.None || p.TCPFlags != want {
				t.Errorf("chunk %d: %v, flags %#02x, want %#02x", chunk, drop, p.TCPFlags, want)
			}
			if p.Tuple.SrcPort != 40000 || p.Tuple.DstPort != 80 || p.Tuple.Proto != header.ProtoSCTP ||
				!p.Tuple.Stateful() {
				t.Errorf("chunk %d: %+v", chunk, p.Tuple)
			}
		}
	}
}

func TestParseSCTPRefuses(t *testing.T) {
	const l4 = 14 + 20
	init, sack := corpus()["sctp4 init"], headertest.SCTP(client4, vip4, 3).Bytes()
	long := headertest.SCTP(client4, vip4, 1)
	long.Payload = append(long.Payload, 0, 4, 0, 4) // a parameter, or a second chunk, depending on the length
	for _, c := range []struct {
		name  string
		frame []byte
		want  reason.Drop
	}{
		{"header cut", patch(sack, 16, 0, 20+11), reason.SCTPHeader},
		{"no chunk", patch(sack, 16, 0, 20+12), reason.SCTPHeader},
		{"chunk header cut", patch(sack, 16, 0, 20+15), reason.SCTPHeader},
		{"chunk header whole", patch(sack, 16, 0, 20+16), reason.None},
		{"chunk of 3 bytes", patch(sack, l4+14, 0, 3), reason.SCTPHeader},
		{"chunk past the packet", patch(sack, l4+14, 0, 5), reason.SCTPHeader},
		{"INIT with a tag", patch(init, l4+7, 1), reason.SCTPHeader},
		{"INIT with a tag's high byte", patch(init, l4+4, 1), reason.SCTPHeader},
		{"SACK without a tag", patch(sack, l4+4, 0, 0, 0, 0), reason.SCTPHeader},
		{"INIT ACK without a tag", patch(init, l4+12, 2), reason.SCTPHeader},
		{"INIT of 19 bytes", patch(init, l4+14, 0, 19), reason.SCTPHeader},
		{"INIT with a parameter", long.Bytes(), reason.None},
		{"INIT and another chunk", patch(long.Bytes(), l4+14, 0, 20), reason.SCTPHeader},
		{"INIT with padding", patch(long.Bytes(), l4+14, 0, 21), reason.None},
		{"source port 0", patch(init, l4, 0, 0), reason.PortZero},
		{"destination port 0", patch(init, l4+2, 0, 0), reason.PortZero},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p header.Packet
			if got := header.Parse(c.frame, &p); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
			agree(t, c.name, c.frame)
		})
	}
}

// The ports of a first fragment are parsed although it is rejected: the caller needs them to
// distinguish a packet of a Service from one of the node.
func TestParseSCTPFragmentHasPorts(t *testing.T) {
	d := headertest.SCTP(client6, vip6, 0)
	d.Payload = make([]byte, 200)
	for i, frame := range headertest.Split(d.Bytes(), 104, 7) {
		var p header.Packet
		if got := header.Parse(frame, &p); got != reason.SCTPFragment {
			t.Errorf("fragment %d: %v", i, got)
		}
		if known := p.Tuple.SrcPort == 40000 && p.Tuple.DstPort == 80; known != (i == 0) ||
			p.Tuple.Proto != header.ProtoSCTP {
			t.Errorf("fragment %d: %+v", i, p.Tuple)
		}
	}
}

// Every value of each field that is checked, and every length with every packet size.
func TestEnumerateSCTP(t *testing.T) {
	for _, name := range []string{"sctp4 init", "sctp4 data", "sctp6 initack", "sctp6 abort"} {
		base := corpus()[name]
		l4 := len(base) - len(headertest.IP(base)) + 20
		if base[12] == 0x86 {
			l4 += 20
		}
		for at := range 16 {
			for v := range 256 {
				agree(t, name, patch(base, l4+at, byte(v)))
			}
		}
		for chunk := range 256 {
			for length := range 48 {
				f := patch(base, l4+12, byte(chunk), 0, 0, byte(length))
				agree(t, name, f)
				agree(t, name, patch(f, l4+4, 0, 0, 0, 0))
			}
		}
	}
}

func TestStateful(t *testing.T) {
	for proto := range 256 {
		tuple := header.Tuple{Proto: uint8(proto)}
		if want := proto == 6 || proto == 132; tuple.Stateful() != want {
			t.Errorf("protocol %d: %v", proto, !want)
		}
	}
}
