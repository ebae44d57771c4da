package stateless

import (
	"encoding/binary"

	"sluice.dev/sluice/nat/checksum"
)

// writer writes one packet after another into frames. It belongs to one thread.
//
// A frame that prepare saw has all of the first template in it, even if it was
// written to since; then only what changes between packets is written. All of that is written and
// nothing of it is read: each checksum is the template's sum plus the written values.
type writer struct {
	layout    layout
	tuples    tuples
	order     order
	templates []template // by size, and for each size by fragment
	pattern   []uint8    // of sizes
	patternAt int
	prepared  bool // all frames are; else templates are copied

	// The datagram whose fragments are being written.
	fragment        int // next one
	size            int
	flow, round     uint32
	src, dst, ports uint32
	high, low       uint32 // time stamp
	id              uint32
}

// newWriter is the writer of part q of n. The traffic must have passed check.
func newWriter(t *Traffic, run uint16, q, n int) *writer {
	w := &writer{
		layout: newLayout(t, len(t.VLANs)),
		tuples: tuples{
			src: low32(t.Sources.First), dst: low32(t.Destinations.First),
			srcPort: uint32(t.SourcePorts.First), dstPort: uint32(t.DestinationPorts.First),
			sources: newDivisor(uint32(t.Sources.Count)), sourcePorts: newDivisor(uint32(t.SourcePorts.count())),
			destinations: newDivisor(uint32(t.Destinations.Count)),
		},
		order:   newOrder(uint32(t.Flows), uint32(q), uint32(n)),
		pattern: pattern(t.Sizes),
		id:      uint32(q) << 14, // parts that count alike must not name alike
	}
	for _, s := range t.Sizes {
		for k := range w.layout.fragments {
			w.templates = append(w.templates, newTemplate(t, &w.layout, run, s.Bytes, k))
		}
	}
	return w
}

// prepare puts the template into a frame. It must be called for all frames or none.
func (w *writer) prepare(frame []byte) {
	longest := 0
	for i := range w.templates {
		if len(w.templates[i].bytes) > len(w.templates[longest].bytes) {
			longest = i
		}
	}
	clear(frame[copy(frame, w.templates[longest].bytes):])
	w.prepared = w.layout.fragments == 1 // fragments have different headers
}

// next writes the next packet, stamped now (nanoseconds), to the start of a frame and
// returns its length.
func (w *writer) next(frame []byte, now uint64) uint32 {
	if w.fragment == 0 {
		w.datagram(now)
	}
	m := &w.templates[w.size*w.layout.fragments+w.fragment]
	b := frame[:len(m.bytes)]
	if !w.prepared {
		copy(b, m.bytes)
	}
	l := &w.layout
	binary.BigEndian.PutUint32(b[l.src:], w.src)
	binary.BigEndian.PutUint32(b[l.dst:], w.dst)
	binary.BigEndian.PutUint16(b[l.ipLen:], m.ipLen)
	ipSum := m.ipSum
	if l.ipID != 0 {
		id := uint16(w.id)
		binary.BigEndian.PutUint16(b[l.ipID:], id)
		ipSum += uint64(id)
	}
	if l.ipSum != 0 {
		binary.BigEndian.PutUint16(b[l.ipSum:], ^checksum.Fold(ipSum+uint64(w.src)+uint64(w.dst)))
	}
	seq := w.round*uint32(l.fragments) + uint32(w.fragment)
	at := l.laterTag
	if m.first {
		at = l.tag
		w.transport(b, m, seq)
	}
	t := b[at : at+tagBytes : at+tagBytes]
	binary.BigEndian.PutUint32(t[tagFlow:], w.flow)
	binary.BigEndian.PutUint32(t[tagSeq:], seq)
	binary.BigEndian.PutUint16(t[tagTime:], uint16(w.high))
	binary.BigEndian.PutUint32(t[tagTime+2:], w.low)
	if w.fragment++; w.fragment == l.fragments {
		w.fragment = 0
	}
	return uint32(len(m.bytes))
}

// datagram chooses the next datagram.
func (w *writer) datagram(now uint64) {
	w.flow, w.round = w.order.next()
	w.src, w.dst, w.ports = w.tuples.of(w.flow)
	w.high, w.low = uint32(now>>timeShift)&0xffff, uint32(now)
	w.size = int(w.pattern[w.patternAt])
	if w.patternAt++; w.patternAt == len(w.pattern) {
		w.patternAt = 0
	}
	w.id++
}

// transport writes what changes in the transport header. seq is the sequence number
// of the first fragment.
func (w *writer) transport(b []byte, m *template, seq uint32) {
	l := &w.layout
	sum := m.l4Sum + uint64(w.ports)
	if l.pseudo {
		sum += uint64(w.src) + uint64(w.dst)
	}
	tagSum := uint64(w.flow) + uint64(w.high) + uint64(w.low)
	for k := range uint32(l.fragments) {
		sum += tagSum + uint64(seq+k)
	}
	folded := ^checksum.Fold(sum)
	if l.udp && folded == 0 {
		folded = 0xffff // RFC 768: 0 would mean that there is none
	}
	binary.BigEndian.PutUint32(b[l.ports:], w.ports)
	binary.BigEndian.PutUint16(b[l.l4Sum:], folded)
	if l.l4Len != 0 {
		binary.BigEndian.PutUint16(b[l.l4Len:], m.l4Len)
	}
}
