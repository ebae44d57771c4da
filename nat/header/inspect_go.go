package header

import (
	"encoding/binary"
	"unsafe"
)

// atOnce is how many headers one call prefetches: a call for each header costs more than it saves.
const atOnce = 2

// inspectGo is the twin of the assembly.
func inspectGo(
	m *Memory, frames, ahead []Frame, both bool, out *Plain, stride uintptr, t *tables,
) (bytes uint64, v6 bool) {
	ahead = ahead[:Ahead(len(frames), len(ahead))]
	for i, f := range frames {
		if i%(atOnce*perAhead) == 0 {
			n := min(atOnce, len(ahead))
			m.Fetch(ahead[:n], both)
			ahead = ahead[n:]
		}
		bytes += uint64(f.Len)
		p := (*Plain)(unsafe.Add(unsafe.Pointer(out), uintptr(i)*stride)) // Safety: Inspect requires it
		p.Family, p.End = NotPlain, 0
		if f.Addr > m.last {
			continue
		}
		if w := m.Window4(f.Addr); mayBePlain4(w) {
			p.see4(w, f.Len)
		} else if w := m.Window6(f.Addr); mayBePlain6(w) {
			v6 = true
			p.see6(w, f.Len)
		}
	}
	return bytes, v6
}

// mayBePlain6 is mayBePlain4 for IPv6. Only the twin calls it.
func mayBePlain6(w *[Window6Bytes]byte) bool {
	return binary.LittleEndian.Uint16(w[12:14]) == (EtherTypeIPv6&0xff)<<8|EtherTypeIPv6>>8
}

func (p *Plain) see4(w *[Window4Bytes]byte, frameBytes uint32) {
	end, special := Plain4(w, frameBytes)
	if end == 0 {
		return
	}
	p.Family, p.Proto = PlainIPv4, uint32(PlainProto4(w))
	p.Addr[0], p.Ports = PlainKey4(w)
	if !special {
		p.End = end
	}
}

func (p *Plain) see6(w *[Window6Bytes]byte, frameBytes uint32) {
	end, special := Plain6(w, frameBytes)
	if end == 0 {
		return
	}
	p.Family, p.Proto = PlainIPv6, uint32(PlainProto6(w))
	p.Addr[0], p.Addr[1], p.Addr[2], p.Addr[3], p.Ports = PlainKey6(w)
	if !special {
		p.End = end
	}
}
