package wire

import (
	"encoding/binary"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/nat/header"
)

// Bytes of a record of each family, without its Opening.
const (
	recordBytes4 = 1 + 1 + 1 + 4 + 2*(2*4+2*2)
	recordBytes6 = 1 + 1 + 1 + 4 + 2*(2*16+2*2)
	openingBytes = 4
)

// Flags of a record, beside its family.
const (
	flagProxied     = 1 << 4
	flagHeaderAcked = 1 << 5
	flagReset       = 1 << 6
	flagResetBy     = 1 << 7 // the bit of Record.ResetBy

	flags = flagProxied | flagHeaderAcked | flagReset | flagResetBy
)

// AppendRecords appends Records: 1 to MaxMessages messages with consecutive Seqs.
func AppendRecords(to []byte, messages []group.Message) []byte {
	to = binary.BigEndian.AppendUint64(append(to, byte(Records)), messages[0].Seq)
	for i := range messages {
		m := &messages[i]
		to = append(to, byte(m.Kind))
		if m.Kind == group.Set || m.Kind == group.Clear {
			to = binary.BigEndian.AppendUint32(to, m.Slot)
		}
		if m.Kind == group.Set {
			to = appendRecord(to, &m.Record)
		}
	}
	return to
}

// ReadRecords reads Records, and appends their messages.
func ReadRecords(frame []byte, to []group.Message) ([]group.Message, error) {
	if KindOf(frame) != Records || len(frame) <= 1+8 {
		return to, ErrMalformed
	}
	seq, rest, before := binary.BigEndian.Uint64(frame[1:]), frame[1+8:], len(to)
	for ok := true; len(rest) > 0; seq++ {
		m := group.Message{Kind: group.Kind(rest[0]), Seq: seq}
		rest = rest[1:]
		switch m.Kind {
		case group.All, group.AllDone, group.Complete:
		case group.Set, group.Clear:
			if len(rest) < 4 {
				return to[:before], ErrMalformed
			}
			m.Slot, rest = binary.BigEndian.Uint32(rest), rest[4:]
			if m.Kind == group.Set {
				m.Record, rest, ok = readRecord(rest)
			}
		default:
			ok = false
		}
		if !ok || len(to)-before == MaxMessages || seq == 0 {
			return to[:before], ErrMalformed
		}
		to = append(to, m)
	}
	return to, nil
}

// appendRecord appends a record.
func appendRecord(to []byte, r *group.Record) []byte {
	family := byte(4)
	if r.Client.V6 {
		family = 6
	}
	if r.Proxied {
		family |= flagProxied
	}
	if r.HeaderAcked {
		family |= flagHeaderAcked
	}
	if r.Reset {
		family |= flagReset | byte(r.ResetBy)*flagResetBy
	}
	to = append(to, family, r.Client.Proto, byte(r.State))
	to = binary.BigEndian.AppendUint32(to, r.ISN)
	if hasOpening(r) {
		to = binary.BigEndian.AppendUint32(to, r.Opening)
	}
	for _, t := range [...]*header.Tuple{&r.Client, &r.Reply} {
		if t.V6 {
			to = append(append(to, t.Src[:]...), t.Dst[:]...)
		} else {
			src, dst := t.Src.As4(), t.Dst.As4()
			to = append(append(to, src[:]...), dst[:]...)
		}
		to = binary.BigEndian.AppendUint16(to, t.SrcPort)
		to = binary.BigEndian.AppendUint16(to, t.DstPort)
	}
	return to
}

// readRecord reads the record at the start of b, and returns the bytes after it.
func readRecord(b []byte) (r group.Record, rest []byte, ok bool) {
	if len(b) < recordBytes4 {
		return r, nil, false
	}
	family, proto := b[0]&^flags, b[1]
	r.Proxied, r.HeaderAcked = b[0]&flagProxied != 0, b[0]&flagHeaderAcked != 0
	r.Reset, r.ResetBy = b[0]&flagReset != 0, conn.Side(b[0]/flagResetBy)
	r.State, r.ISN, r.Client.Proto = conn.State(b[2]), binary.BigEndian.Uint32(b[3:]), proto
	b = b[7:]
	if hasOpening(&r) {
		r.Opening, b = binary.BigEndian.Uint32(b), b[openingBytes:]
	}
	v6 := family == 6
	if len(b) < recordBytes4-7 || v6 && len(b) < recordBytes6-7 || family != 4 && !v6 {
		return r, nil, false
	}
	for _, t := range [...]*header.Tuple{&r.Client, &r.Reply} {
		t.V6, t.Proto = v6, proto
		if v6 {
			t.Src, t.Dst, b = header.Addr(b[:16]), header.Addr(b[16:32]), b[32:]
			if t.Src.Is4() || t.Dst.Is4() {
				return r, nil, false
			}
		} else {
			t.Src, t.Dst, b = header.AddrFrom4([4]byte(b[:4])), header.AddrFrom4([4]byte(b[4:8])), b[8:]
		}
		t.SrcPort, t.DstPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		b = b[4:]
	}
	return r, b, r.Possible()
}

// hasOpening reports whether a record is written with its Opening.
func hasOpening(r *group.Record) bool { return r.Proxied && r.Client.Proto == header.ProtoTCP }
