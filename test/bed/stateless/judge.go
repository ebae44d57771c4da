package stateless

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"sluice.dev/sluice/nat/checksum"
)

// judge decides about every packet of one receive queue. It is a pure function of
// the packets and belongs to one thread.
type judge struct {
	layout layout
	run    uint16
	flows  []flowState
	count  Received // only the counters that a judge has
	first  uint64   // arrival of the first packet
	last   uint64
	delays *Histogram
	// notes are the first violations, as they are on the wire; text is made at the end.
	notes [maxNotes]note
	noted int
}

const maxNotes = 8

// note is a violation.
type note struct {
	what verdict
	len  int
	head [128]byte
}

// verdict is the fault of a packet.
type verdict uint8

const (
	good verdict = iota
	damaged
	moved
	renamed
)

func (v verdict) String() string {
	return [...]string{"good", "wrong checksum or length", "another destination than before",
		"another source than before"}[v]
}

// flowState is the state of a flow: 24 bytes.
type flowState struct {
	window   uint64 // bit i: the packet i before next-1 has come
	next     uint32 // one above the highest sequence number; 0 before the first packet
	dst, src uint32 // digests of where the first packet went and came from; never 0
}

func newJudge(l layout, flows int) *judge {
	return &judge{layout: l, flows: make([]flowState, flows), delays: NewHistogram()}
}

// begin forgets everything.
func (j *judge) begin(run uint16) {
	clear(j.flows)
	j.run, j.count, j.first, j.last, j.noted = run, Received{}, 0, 0, 0
	j.delays.h.Reset()
}

// packet judges one. b is the frame, arrival CLOCK_MONOTONIC in nanoseconds.
func (j *judge) packet(b []byte, arrival uint64) {
	l := &j.layout
	later := l.laterTag != 0 && j.laterFragment(b)
	at := l.tag
	if later {
		at = l.laterTag
	}
	if len(b) < at+tagBytes {
		j.count.Foreign++
		return
	}
	t, ok := readTag(b[at:])
	if !ok || t.run != j.run || t.flow >= uint32(len(j.flows)) {
		j.count.Foreign++
		return
	}
	if j.first == 0 {
		j.first = arrival
	}
	j.last = arrival
	j.count.Packets++
	j.count.Bytes += uint64(len(b))
	if !j.valid(b) {
		j.count.Damaged++
		j.note(damaged, b)
	}
	j.delays.Record(age(arrival, t.nanos))
	f := &j.flows[t.flow]
	if f.next == 0 {
		f.src, f.dst = j.digests(b)
	} else if src, dst := j.digests(b); src != f.src || dst != f.dst {
		if dst != f.dst {
			j.count.Moved++
			j.note(moved, b)
		}
		if src != f.src {
			j.count.Renamed++
			j.note(renamed, b)
		}
	}
	j.sequence(f, t.seq)
}

// laterFragment reports whether the fragment is not the first. b holds an IP header,
// the program made sure of that.
func (j *judge) laterFragment(b []byte) bool {
	l3 := b[j.layout.l3:]
	if j.layout.v6 {
		return len(l3) > ip6Bytes+4 && binary.BigEndian.Uint16(l3[ip6Bytes+2:])&^7 != 0
	}
	return len(l3) > ip4Bytes && binary.BigEndian.Uint16(l3[6:])&0x1fff != 0
}

// sequence keeps the window of the last 64 packets of a flow.
func (j *judge) sequence(f *flowState, seq uint32) {
	if seq >= f.next {
		f.window = f.window<<min(seq-f.next+1, 64) | 1
		f.next = seq + 1
		return
	}
	back := f.next - 1 - seq
	switch {
	case back >= 64: // nobody knows any more whether it came before
		j.count.Reordered++
	case f.window>>back&1 != 0:
		j.count.Duplicates++
	default:
		f.window |= 1 << back
		j.count.Reordered++
	}
}

// digests are numbers for source and destination. Fragments have ports only in the
// first, so theirs are of addresses alone.
func (j *judge) digests(b []byte) (src, dst uint32) {
	l := &j.layout
	var ports uint32
	if l.laterTag == 0 {
		ports = binary.BigEndian.Uint32(b[l.ports:])
	}
	s, d := uint64(binary.BigEndian.Uint32(b[l.src:])), uint64(binary.BigEndian.Uint32(b[l.dst:]))
	if l.v6 {
		for i := range 3 {
			s = mix(s) + uint64(binary.BigEndian.Uint32(b[l.src-12+4*i:]))
			d = mix(d) + uint64(binary.BigEndian.Uint32(b[l.dst-12+4*i:]))
		}
	}
	s, d = mix(s<<16|uint64(ports>>16)), mix(d<<16|uint64(ports&0xffff))
	return uint32(s>>32) | 1, uint32(d>>32) | 1
}

// mix spreads the bits of v (the finalizer of splitmix64).
func mix(v uint64) uint64 {
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return v ^ v>>31
}

// valid checks lengths and checksums in full. A fragment's transport checksum is of
// more than the fragment, and is not checked.
func (j *judge) valid(b []byte) bool {
	l := &j.layout
	length := int(binary.BigEndian.Uint16(b[l.ipLen:])) + l.l3
	if l.v6 {
		length += ip6Bytes
	}
	if length > len(b) || (length < len(b) && len(b) > minFrameBytes-fcsBytes) || length < l.l4 {
		return false
	}
	if !l.v6 && (b[l.l3] != 0x45 || checksum.Sum(b[l.l3:l.l3+ip4Bytes]) != 0xffff) {
		return false
	}
	if l.laterTag != 0 {
		return true
	}
	sum := uint64(checksum.Sum(b[l.l4:length]))
	if l.pseudo {
		addresses := 8
		proto := b[l.l3+9]
		if l.v6 {
			addresses, proto = 32, b[l.l3+6]
		}
		end := l.dst + 4
		sum += uint64(checksum.Sum(b[end-addresses:end])) + uint64(proto) + uint64(length-l.l4)
	}
	return checksum.Fold(sum) == 0xffff && (!l.udp || binary.BigEndian.Uint16(b[l.l4Sum:]) != 0)
}

func (j *judge) note(v verdict, b []byte) {
	if j.noted < maxNotes {
		n := &j.notes[j.noted]
		n.what, n.len = v, copy(n.head[:], b)
		j.noted++
	}
}

// violations are the notes as text.
func (j *judge) violations() (out []string) {
	for i := range j.noted {
		n := &j.notes[i]
		b := n.head[:n.len]
		l := &j.layout
		width := 4
		if l.v6 {
			width = 16
		}
		src, _ := netip.AddrFromSlice(b[l.src+4-width : l.src+4])
		dst, _ := netip.AddrFromSlice(b[l.dst+4-width : l.dst+4])
		at := l.tag
		ports := binary.BigEndian.Uint32(b[l.ports:])
		if l.laterTag != 0 && j.laterFragment(b) {
			at, ports = l.laterTag, 0
		}
		t, _ := readTag(b[at:])
		out = append(out, fmt.Sprintf("flow %d packet %d: %s to %s: %v", t.flow, t.seq,
			netip.AddrPortFrom(src, uint16(ports>>16)), netip.AddrPortFrom(dst, uint16(ports)), n.what))
	}
	return out
}

// combine adds up what several queues saw. A flow that came to two queues must have
// had one source and one destination there too.
func combine(judges []*judge) Received {
	var r Received
	r.Latency = NewHistogram()
	first, last := ^uint64(0), uint64(0)
	for _, j := range judges {
		c := &j.count
		r.Packets += c.Packets
		r.Bytes += c.Bytes
		r.Foreign += c.Foreign
		r.Duplicates += c.Duplicates
		r.Reordered += c.Reordered
		r.Damaged += c.Damaged
		r.Moved += c.Moved
		r.Renamed += c.Renamed
		r.Queues = append(r.Queues, c.Packets)
		r.Latency.Merge(j.delays)
		r.Violations = append(r.Violations, j.violations()...)
		if c.Packets > 0 {
			first, last = min(first, j.first), max(last, j.last)
		}
	}
	r.Elapsed = time.Duration(max(first, last) - first)
	if last == 0 {
		r.Elapsed = 0
	}
	for flow := range judges[0].flows {
		var seen *flowState
		for _, j := range judges {
			f := &j.flows[flow]
			switch {
			case f.next == 0:
			case seen == nil:
				seen = f
				r.Flows++
			default:
				if f.dst != seen.dst {
					r.Moved++
				}
				if f.src != seen.src {
					r.Renamed++
				}
			}
		}
	}
	return r
}
