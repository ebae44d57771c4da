package header_test

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// agreePlain checks that Parse accepts every frame that Plain accepts, with the same result, except
// for tuples that no flow has; and that a frame that only Parse accepts is not plain by definition.
// behind is the value of the bytes after the frame in memory.
func agreePlain(t *testing.T, frame []byte, behind byte) (plain bool) {
	t.Helper()
	var w4 [header.Window4Bytes]byte
	var w6 [header.Window6Bytes]byte
	for _, w := range [][]byte{w4[:], w6[:]} {
		for i := copy(w, frame); i < len(w); i++ {
			w[i] = behind
		}
	}
	var p header.Packet
	drop := header.Parse(slices.Clip(frame), &p)
	end, special := header.Plain4(&w4, uint32(len(frame)))
	end6, special6 := header.Plain6(&w6, uint32(len(frame)))
	if end != 0 && end6 != 0 {
		t.Fatalf("of both families: %x", frame)
	}
	if v6 := end6 != 0; v6 {
		end, special = end6, special6
	}
	if noFlowHas[drop] {
		// Plain returns the same as for another tuple.
		repaired := otherTuple(frame, p.L3)
		again4, again6 := w4, w6
		copy(again4[:], repaired)
		copy(again6[:], repaired)
		other, opens := header.Plain4(&again4, uint32(len(frame)))
		if other6, opens6 := header.Plain6(&again6, uint32(len(frame))); other6 != 0 {
			other, opens = other6, opens6
		}
		if other != end || opens != special {
			t.Fatalf("%v: end %d, with another tuple %d\n%x\n%x", drop, end, other, frame, repaired)
		}
		return agreePlain(t, repaired, behind)
	}
	isPlain := drop == reason.None && definedPlain(&p)
	if isPlain != (end != 0) {
		t.Fatalf("end %d, Parse returns %v: %+v\n%x", end, drop, p, frame)
	}
	if !isPlain {
		return false
	}
	opens := p.Tuple.Proto == header.ProtoTCP &&
		p.TCPFlags&(header.TCPSYN|header.TCPFIN|header.TCPRST|header.TCPACK) != header.TCPACK
	if uint32(p.End) != end || special != opens {
		t.Fatalf("end %d, special %v, Parse returns %+v\n%x", end, special, p, frame)
	}
	var got header.Tuple
	if p.Tuple.V6 {
		a, b, c, d, ports := header.PlainKey6(&w6)
		got = tupleOf6([4]uint64{a, b, c, d}, ports, header.PlainProto6(&w6))
	} else {
		addrs, ports := header.PlainKey4(&w4)
		got = tupleOf4(addrs, ports, header.PlainProto4(&w4))
	}
	if got != p.Tuple {
		t.Fatalf("key %+v, Parse returns %+v\n%x", got, p.Tuple, frame)
	}
	return true
}

// noFlowHas has the drop reasons of Parse that concern only the tuple.
var noFlowHas = map[reason.Drop]bool{reason.MartianSource: true, reason.MartianDestination: true,
	reason.LandAttack: true, reason.PortZero: true}

// otherTuple returns the frame with addresses and ports that flows may have, as far as the frame
// contains them. Its IPv4 checksum is right or wrong as before.
func otherTuple(frame []byte, l3 uint16) []byte {
	f := slices.Clone(frame)
	ip, ports := f[l3:], 0
	if ip[0]>>4 == 6 {
		copy(ip[8:40], []byte("\x20\x01\x0d\xb8............\x20\x01\x0d\xb9............"))
		ports = header.IPv6Bytes
	} else {
		ports = int(ip[0]&15) * 4
		difference := checksum.Sum(ip[12:20])
		copy(ip[12:20], []byte{192, 0, 2, 1, 198, 51, 100, 7})
		difference = checksum.Add(^difference, checksum.Sum(ip[12:20]))
		binary.BigEndian.PutUint16(ip[10:], checksum.Update(binary.BigEndian.Uint16(ip[10:]), difference))
	}
	if len(ip) >= ports+4 {
		copy(ip[ports:], []byte{1, 2, 3, 4})
	}
	return f
}

// definedPlain is the definition at the top of plain.go.
func definedPlain(p *header.Packet) bool {
	return !p.Multicast && p.VLANs == 0 && p.Fragment == header.NotFragment && p.FragmentHeader == 0 && p.TTL > 1 &&
		(p.Tuple.Proto == header.ProtoTCP || p.Tuple.Proto == header.ProtoUDP) &&
		(p.Tuple.V6 && p.L4-p.L3 == header.IPv6Bytes || !p.Tuple.V6 && p.L4-p.L3 == header.IPv4Bytes)
}

func tupleOf4(addrs uint64, ports uint32, proto uint8) header.Tuple {
	four := func(a uint32) header.Addr {
		return header.AddrFrom4([4]byte{byte(a >> 24), byte(a >> 16), byte(a >> 8), byte(a)})
	}
	return header.Tuple{Src: four(uint32(addrs >> 32)), Dst: four(uint32(addrs)), SrcPort: uint16(ports >> 16),
		DstPort: uint16(ports), Proto: proto}
}

func tupleOf6(a [4]uint64, ports uint32, proto uint8) header.Tuple {
	t := header.Tuple{SrcPort: uint16(ports >> 16), DstPort: uint16(ports), Proto: proto, V6: true}
	for i := range 8 {
		shift := 56 - 8*i
		t.Src[i], t.Src[8+i], t.Dst[i], t.Dst[8+i] = byte(a[0]>>shift), byte(a[1]>>shift), byte(a[2]>>shift),
			byte(a[3]>>shift)
	}
	return t
}

// traffic returns the corpus, and as many packets again of the kinds that are most frequent in a
// network.
func traffic() [][]byte {
	all := corpus()
	var frames [][]byte
	for _, name := range slices.Sorted(maps.Keys(all)) { // in order, so that a seed determines the frames
		frames = append(frames, all[name])
	}
	for _, v6 := range []bool{false, true} {
		src, dst := "192.0.2.1:40000", "198.51.100.7:80"
		if v6 {
			src, dst = "[2001:db8::1]:40000", "[2001:db8:1::7]:80"
		}
		for range 20 {
			frames = append(frames, headertest.TCP(src, dst, headertest.ACK|headertest.PSH).Bytes(),
				headertest.UDP(src, dst, "payload").Bytes())
		}
	}
	return frames
}

// mutated returns a frame changed in up to three places, most of them in the headers, or cut;
// sometimes it then sets the right IPv4 checksum.
func mutated(r *rand.Rand, f []byte) []byte {
	frame := slices.Clone(f)
	for range r.IntN(4) {
		if len(frame) > 0 {
			at := r.IntN(min(len(frame), 80))
			frame[at] = []byte{0, 1, 0xff, frame[at] ^ 1<<r.IntN(8), byte(r.Uint32())}[r.IntN(5)]
		}
	}
	if r.IntN(4) == 0 {
		frame = frame[:r.IntN(len(frame)+1)]
	}
	if len(frame) >= 34 && r.IntN(3) > 0 && frame[12] == 8 && frame[13] == 0 && frame[14] == 0x45 {
		headertest.SealIPv4(frame)
	}
	return frame
}

// seeded returns a random source and logs its seed.
func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func TestPlain(t *testing.T) {
	r := seeded(t)
	frames := traffic()
	plain, n := 0, 0
	for range 3000 {
		for _, f := range frames {
			if n++; agreePlain(t, mutated(r, f), byte(r.Uint32())) {
				plain++
			}
		}
	}
	if plain < n/5 || plain > n*4/5 {
		t.Errorf("%d of %d frames were plain: too one-sided for this test", plain, n)
	}
}

func FuzzPlain(f *testing.F) {
	for _, frame := range corpus() {
		f.Add(frame, byte(0), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, behind byte, seal bool) {
		frame := slices.Clone(data)
		if seal && len(frame) >= 34 && frame[12] == 8 && frame[13] == 0 {
			headertest.SealIPv4(frame)
		}
		agreePlain(t, frame, behind)
	})
}
