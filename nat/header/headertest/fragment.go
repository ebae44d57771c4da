package headertest

import "encoding/binary"

// Split cuts the IP packet of an untagged frame into fragments that carry at most
// bytes (a multiple of eight) of its payload each, in order. An IPv6 packet must
// have no extension headers; id is the datagram's identification.
func Split(frame []byte, bytes int, id uint32) [][]byte {
	ip := IP(frame)
	headerBytes := 40
	if ip[0]>>4 == 4 {
		headerBytes = int(ip[0]&15) * 4
	}
	payload := ip[headerBytes:]
	var out [][]byte
	for at := 0; at < len(payload); at += bytes {
		end := min(at+bytes, len(payload))
		f := append([]byte(nil), frame[:14+headerBytes]...)
		f = fragmentHeader(f, at, end < len(payload), id)
		f = append(f, payload[at:end]...)
		seal(f)
		out = append(out, f)
	}
	return out
}

// fragmentHeader makes a copied IP header a fragment's.
func fragmentHeader(f []byte, offset int, more bool, id uint32) []byte {
	ip := f[14:]
	if ip[0]>>4 == 4 {
		word := uint16(offset / 8)
		if more {
			word |= 0x2000
		}
		binary.BigEndian.PutUint16(ip[4:], uint16(id))
		binary.BigEndian.PutUint16(ip[6:], word)
		return f
	}
	word := uint16(offset)
	if more {
		word |= 1
	}
	h := []byte{ip[6], 0}
	ip[6] = Fragment
	h = binary.BigEndian.AppendUint16(h, word)
	return append(f, binary.BigEndian.AppendUint32(h, id)...)
}

// seal sets the right IP length for the frame, and the right IPv4 header checksum.
func seal(f []byte) {
	ip := f[14:]
	if ip[0]>>4 == 6 {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40))
		return
	}
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	SealIPv4(f)
}

// SealIPv4 sets the right IPv4 header checksum of an untagged frame after a test changed the
// header.
func SealIPv4(frame []byte) {
	ip := frame[14:]
	h := ip[:min(int(ip[0]&15)*4, len(ip))]
	if len(h) < 20 {
		return
	}
	h[10], h[11] = 0, 0
	binary.BigEndian.PutUint16(h[10:], ^add(0, h))
}
