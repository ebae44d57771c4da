package header_test

import (
	"slices"
	"testing"

	"sluice.dev/sluice/nat/header/headertest"
)

// The enumerations compare Parse with the reference over whole fields: for every value, not only
// for chosen ones.

func TestEnumerateIPv4Header(t *testing.T) {
	base := append(corpus()["tcp4 ip opts"], make([]byte, 40)...)
	for versionIHL := range 256 {
		agree(t, "version and header length", patch(base, 14, byte(versionIHL)))
	}
	for flags := range 1 << 16 {
		agree(t, "flags and offset", patch(base, 20, byte(flags>>8), byte(flags)))
	}
	for proto := range 256 {
		agree(t, "protocol", patch(base, 23, byte(proto)))
	}
	for ttl := range 256 {
		agree(t, "ttl", patch(base, 22, byte(ttl)))
	}
}

// Every option type with every length, at every place where it fits.
func TestEnumerateIPv4Options(t *testing.T) {
	for before := range 4 {
		frame := tcp(func(p *headertest.Packet) {
			p.Options = append(slices.Repeat([]byte{1}, before), make([]byte, 12-before)...)
		})
		for option := range 256 {
			for length := range 20 {
				agree(t, "option", patch(frame, 34+before, byte(option), byte(length)))
			}
		}
	}
}

// Tags of every length in security labels of every length.
func TestEnumerateIPv4SecurityLabels(t *testing.T) {
	frame := tcp(func(p *headertest.Packet) { p.Options = make([]byte, 20) })
	for length := range 22 {
		for first := range 18 {
			for second := range 18 {
				f := patch(frame, 34, 134, byte(length), 0, 0, 0, byte(first%3), 1, byte(first))
				agree(t, "label", patch(f, 40+first, 2, byte(second)))
			}
		}
	}
}

// Every pointer and every flag of the options that routers write into, with every length.
func TestEnumerateIPv4OptionsThatAreWritten(t *testing.T) {
	frame := tcp(func(p *headertest.Packet) { p.Options = make([]byte, 16) })
	for _, option := range []byte{7, 68, 148} {
		for length := range 18 {
			for pointer := range 20 {
				for flags := range 256 {
					agree(t, "option", patch(frame, 34, option, byte(length), byte(pointer), byte(flags)))
				}
			}
		}
	}
}

func TestEnumerateTCP(t *testing.T) {
	base := tcp(func(p *headertest.Packet) { p.TCPOptions = make([]byte, 24) })
	for offset := range 16 {
		for flags := range 512 { // with the bit that once was NS
			agree(t, "offset and flags", patch(base, 14+20+12, byte(offset<<4|flags>>8), byte(flags)))
		}
	}
}

// Every protocol after every protocol: two extension headers and the next header.
func TestEnumerateIPv6Chain(t *testing.T) {
	base := udp6(func(p *headertest.Packet) {
		p.Extensions = []headertest.Extension{{Type: 60, Data: padding}, {Type: 60, Data: padding}}
	})
	interesting := []byte{0, 1, 4, 6, 17, 41, 43, 44, 50, 51, 58, 59, 60, 132, 135, 139, 140, 253}
	for first := range 256 {
		for _, second := range interesting {
			for _, third := range interesting {
				f := patch(base, 20, byte(first))
				f[54], f[62] = second, third
				agree(t, "chain", f)
			}
		}
	}
	for length := range 256 {
		agree(t, "length", patch(base, 55, byte(length)))
	}
	for depth := range 20 {
		agree(t, "depth", extensions(slices.Repeat([]uint8{60}, depth)...))
		agree(t, "depth behind a fragment header",
			extensions(append([]uint8{44}, slices.Repeat([]uint8{43}, depth)...)...))
	}
}

// Every IPv6 option with every length, after pads of each length.
func TestEnumerateIPv6Options(t *testing.T) {
	for pads := range 9 {
		data := make([]byte, 22)
		base := options6(data...)
		for option := range 256 {
			for length := range 22 {
				agree(t, "option", patch(base, 56+pads, byte(option), byte(length)))
			}
		}
	}
}

func TestEnumerateIPv6Fragment(t *testing.T) {
	base := extensions(60, 44)
	for word := range 1 << 16 {
		agree(t, "offset and flags", patch(base, 62+2, byte(word>>8), byte(word)))
	}
	for reserved := range 256 { // a length in every other extension header
		agree(t, "reserved byte", patch(base, 62+1, byte(reserved)))
	}
	for next := range 256 {
		for _, word := range []byte{0, 1, 8, 9} {
			f := patch(base, 62, byte(next))
			f[65] = word
			agree(t, "next header", f)
		}
	}
}

func TestEnumerateUDPAndICMP(t *testing.T) {
	for _, name := range []string{"udp4", "udp6", "echo4", "echo6"} {
		base := corpus()[name]
		l4 := len(base) - len(headertest.IP(base)) + 20
		if base[12] == 0x86 {
			l4 += 20
		}
		for at := range 8 {
			for v := range 256 {
				agree(t, name, patch(base, l4+at, byte(v)))
			}
		}
		agree(t, name, patch(base, l4+6, 0, 0))
	}
}
