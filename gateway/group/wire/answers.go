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

// Remark is what the member says about a message that it has applied: a Reason, or an Age.
type Remark struct {
	// Back is how many messages before Acknowledgement.Seq it was: below MaxMessages.
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

// ReadApplied reads Applied into a, whose memory it uses again.
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

// sightingBytes are the bytes of a sighting.
const sightingBytes = 4 + 1 + 1

// The notes of a sighting.
const (
	noteProof = 1 << iota
	noteReset
	noteResetBy // the bit of Sighting.ResetBy
	noteOutlived
	noteAsked
	noteLost
	noteHeaderAcked
)

// noteBit returns a note if it holds.
func noteBit(holds bool, note byte) byte {
	if holds {
		return note
	}
	return 0
}

// notesOf returns the notes of a sighting.
func notesOf(s *group.Sighting) byte {
	return noteBit(s.Proof, noteProof) | noteBit(s.Reset, noteReset) | byte(s.ResetBy)*noteResetBy |
		noteBit(s.Outlived, noteOutlived) | noteBit(s.Asked, noteAsked) | noteBit(s.Lost, noteLost) |
		noteBit(s.HeaderAcked, noteHeaderAcked)
}

// AppendSaw appends Saw: 1 to MaxMessages sightings.
func AppendSaw(to []byte, seen []group.Sighting) []byte {
	to = append(to, byte(Saw))
	for _, s := range seen {
		to = append(binary.BigEndian.AppendUint32(to, s.Slot), byte(s.State), notesOf(&s))
	}
	return to
}

// ReadSaw reads Saw, and appends its sightings.
func ReadSaw(frame []byte, to []group.Sighting) ([]group.Sighting, error) {
	n := (len(frame) - 1) / sightingBytes
	if KindOf(frame) != Saw || n == 0 || n > MaxMessages || len(frame) != 1+n*sightingBytes {
		return to, ErrMalformed
	}
	for b := frame[1:]; len(b) > 0; b = b[sightingBytes:] {
		s, notes := group.Sighting{Slot: binary.BigEndian.Uint32(b)}, b[5]
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
