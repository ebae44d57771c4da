package wire

import (
	"encoding/binary"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/gateway/group"
)

// Acknowledgement is the content of Applied.
type Acknowledgement struct {
	Sent    int64  // time at which the member sent it, in nanoseconds of the member's clock
	Seq     uint64 // of the last message that the member has applied
	Remarks []Remark
}

// Remark is additional information about a message that the member has applied: a Reason, or an
// Age.
type Remark struct {
	// Back is the message's distance before Acknowledgement.Seq: below MaxMessages.
	Back   uint16
	Reason group.Refusal // why there is no copy
	Age    group.Age     // of the last datagram of a copy that has ended
}

// AppendApplied appends Applied. Remarks must be in the order of the messages.
func AppendApplied(to []byte, a *Acknowledgement) []byte {
	to = binary.BigEndian.AppendUint64(append(to, byte(Applied)), uint64(a.Sent))
	to = binary.BigEndian.AppendUint64(to, a.Seq)
	for _, r := range a.Remarks {
		to = append(binary.BigEndian.AppendUint16(to, r.Back), byte(r.Reason))
		if r.Reason == group.Accepted {
			to = binary.BigEndian.AppendUint16(to, uint16(r.Age))
		}
	}
	return to
}

// ReadApplied reads Applied into a, and reuses the memory of a.Remarks.
func ReadApplied(frame []byte, a *Acknowledgement) error {
	const head, remark, age = 1 + 8 + 8, 2 + 1, 2
	if KindOf(frame) != Applied || len(frame) < head {
		return ErrMalformed
	}
	a.Sent, a.Seq = int64(binary.BigEndian.Uint64(frame[1:])), binary.BigEndian.Uint64(frame[9:])
	a.Remarks = a.Remarks[:0]
	last := uint16(MaxMessages)
	for b := frame[head:]; len(b) > 0; {
		if len(b) < remark {
			return ErrMalformed
		}
		r := Remark{Back: binary.BigEndian.Uint16(b), Reason: group.Refusal(b[2])}
		if b = b[remark:]; r.Reason == group.Accepted && len(b) >= age {
			r.Age, b = group.Age(binary.BigEndian.Uint16(b)), b[age:]
		}
		if r.Back >= last || uint64(r.Back) >= a.Seq || r.Reason > group.MaxRefusal ||
			r.Reason == group.Accepted && r.Age == 0 {
			return ErrMalformed
		}
		last = r.Back
		a.Remarks = append(a.Remarks, r)
	}
	return nil
}

// AppendMine appends Mine: up to MaxMessages records that the owner takes back. last says that no
// other Mine follows.
func AppendMine(to []byte, records []group.Record, last bool) []byte {
	to = append(to, byte(Mine), 0)
	if last {
		to[len(to)-1] = 1
	}
	for i := range records {
		to = appendRecord(to, &records[i])
	}
	return to
}

// ReadMine reads Mine, and appends its records.
func ReadMine(frame []byte, to []group.Record) (records []group.Record, last bool, err error) {
	if KindOf(frame) != Mine || len(frame) < 2 || frame[1] > 1 {
		return to, false, ErrMalformed
	}
	before := len(to)
	for b := frame[2:]; len(b) > 0; {
		r, rest, ok := readRecord(b)
		if !ok || len(to)-before == MaxMessages {
			return to[:before], false, ErrMalformed
		}
		to, b = append(to, r), rest
	}
	return to, frame[1] == 1, nil
}

// copyStateBytes is the size of a CopyState.
const copyStateBytes = 4 + 1 + 1

// The notes of a CopyState, a bit each.
const (
	noteProof = 1 << iota
	noteReset
	noteResetBy // CopyState.ResetBy
	noteOutlived
	noteAsked
	noteLost
	noteHeaderAcked
)

// noteBit returns note if holds is true, and else 0.
func noteBit(holds bool, note byte) byte {
	if holds {
		return note
	}
	return 0
}

// notesOf returns the notes of a CopyState.
func notesOf(s *group.CopyState) byte {
	return noteBit(s.Proof, noteProof) | noteBit(s.Reset, noteReset) | byte(s.ResetBy)*noteResetBy |
		noteBit(s.Outlived, noteOutlived) | noteBit(s.Asked, noteAsked) | noteBit(s.Lost, noteLost) |
		noteBit(s.HeaderAcked, noteHeaderAcked)
}

// AppendCopyStates appends CopyStates: 1 to MaxMessages of them.
func AppendCopyStates(to []byte, seen []group.CopyState) []byte {
	to = append(to, byte(CopyStates))
	for _, s := range seen {
		to = append(binary.BigEndian.AppendUint32(to, s.Slot), byte(s.State), notesOf(&s))
	}
	return to
}

// ReadCopyStates reads CopyStates, and appends them.
func ReadCopyStates(frame []byte, to []group.CopyState) ([]group.CopyState, error) {
	n := (len(frame) - 1) / copyStateBytes
	if KindOf(frame) != CopyStates || n == 0 || n > MaxMessages || len(frame) != 1+n*copyStateBytes {
		return to, ErrMalformed
	}
	for b := frame[1:]; len(b) > 0; b = b[copyStateBytes:] {
		s, notes := group.CopyState{Slot: binary.BigEndian.Uint32(b)}, b[5]
		s.State = conn.State(b[4])
		s.Proof, s.Outlived = notes&noteProof != 0, notes&noteOutlived != 0
		s.Asked, s.Lost, s.HeaderAcked = notes&noteAsked != 0, notes&noteLost != 0, notes&noteHeaderAcked != 0
		if s.Reset = notes&noteReset != 0; s.Reset {
			s.ResetBy = conn.Side(notes / noteResetBy & 1)
		}
		if s.State >= conn.NumStates || s.Reset && s.Outlived || notes != notesOf(&s) {
			return to, ErrMalformed
		}
		to = append(to, s)
	}
	return to, nil
}
