package stateful

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"time"
)

// TagBytes is the length of the tag at the beginning of a server's messages, and of every datagram
// of a given size:
//
//	0        4          8           12     14     16
//	| magic  | server   | peer      | step | seq  |
//
// server is the number of the server's address in the pool plus one, zero from a client; peer is a
// hash of the client's address and port as the server sees them; step is the step's number, and seq
// the datagram's number in it. Over TCP seq is zero.
const TagBytes = 16

const tagMagic = 0x534c5447 // "SLTG"

// Tag is the content of such a tag.
type Tag struct {
	Server, Peer uint32
	Step, Seq    uint16
}

// Put writes the tag into the first TagBytes of b.
func (t Tag) Put(b []byte) {
	binary.BigEndian.PutUint32(b, tagMagic)
	binary.BigEndian.PutUint32(b[4:], t.Server)
	binary.BigEndian.PutUint32(b[8:], t.Peer)
	binary.BigEndian.PutUint16(b[12:], t.Step)
	binary.BigEndian.PutUint16(b[14:], t.Seq)
}

// ReadTag reads a tag; ok is false if b does not begin with one.
func ReadTag(b []byte) (t Tag, ok bool) {
	if len(b) < TagBytes || binary.BigEndian.Uint32(b) != tagMagic {
		return t, false
	}
	return Tag{
		Server: binary.BigEndian.Uint32(b[4:]), Peer: binary.BigEndian.Uint32(b[8:]),
		Step: binary.BigEndian.Uint16(b[12:]), Seq: binary.BigEndian.Uint16(b[14:]),
	}, true
}

// patternBytes is the period of the pattern in messages. One more segment follows it in memory, so
// that every segment is contiguous.
const patternBytes = 1 << 16

// pattern is the content of messages of a given size, behind their tags.
var pattern = func() []byte {
	r := rand.NewChaCha8([32]byte{'s', 'l', 'u', 'i', 'c', 'e'})
	b := make([]byte, patternBytes+2048)
	_, _ = r.Read(b[:patternBytes]) // never fails
	copy(b[patternBytes:], b)
	return b
}()

// step is a Step in the engines' form: 24 bytes and no pointers.
type step struct {
	size    uint32 // bytes of a message
	literal uint32 // offset of its bytes in plan.literals, or noLiteral
	afterMS uint32
	count   uint16
	from    Side
	last    bool
}

const noLiteral = ^uint32(0)

// template is a Template in the engines' form.
type template struct {
	first     uint32 // index of its first step in plan.steps
	steps     uint16
	port      uint16
	protocol  Protocol
	close     Side
	retries   uint8
	timeoutMS uint32
}

// plan is a profile in the engines' form: shared, immutable, without pointers below the slices.
type plan struct {
	templates []template
	steps     []step
	literals  []byte
	byPort    [2][1 << 16]uint8 // template number plus one, TCP and UDP
	turns     []uint8           // template numbers in proportion to their shares
}

func newPlan(p *Profile) *plan {
	l := &plan{}
	for i := range p.Templates {
		t := &p.Templates[i]
		l.templates = append(l.templates, template{
			first: uint32(len(l.steps)), steps: uint16(len(t.Steps)), port: t.Port, protocol: t.Protocol,
			close: t.Close, retries: uint8(t.Retries), timeoutMS: milliseconds(t.Timeout),
		})
		l.byPort[protocolRow(t.Protocol)][t.Port] = uint8(i + 1)
		for j := range t.Steps {
			s := &t.Steps[j]
			l.steps = append(l.steps, step{
				size: uint32(s.Size), count: uint16(s.Count), from: s.From, afterMS: milliseconds(s.After),
				literal: l.keep(s.Bytes), last: j == len(t.Steps)-1,
			})
		}
	}
	l.turns = turns(p)
	return l
}

// keep stores bytes once, also if a repetition contains them several times.
func (l *plan) keep(b []byte) uint32 {
	if b == nil {
		return noLiteral
	}
	at := bytes.Index(l.literals, b)
	if at < 0 {
		at = len(l.literals)
		l.literals = append(l.literals, b...)
	}
	return uint32(at)
}

// milliseconds rounds up: a think time is never shortened.
func milliseconds(d time.Duration) uint32 {
	return uint32((d + time.Millisecond - 1) / time.Millisecond)
}

func protocolRow(p Protocol) int {
	if p == ProtocolUDP {
		return 1
	}
	return 0
}

// content is n bytes of a message from an offset, before a tag is written over them; n is at most a
// segment.
func (l *plan) content(s *step, offset uint32, n int) []byte {
	if s.literal != noLiteral {
		at := int(s.literal) + int(offset)
		return l.literals[at : at+n]
	}
	at := int(offset % patternBytes)
	return pattern[at : at+n]
}

// turnsLength is the number of connections after which the shares are exact.
const turnsLength = 1000

// turns distributes templates by their shares: each turn goes to the template that is furthest
// behind its share.
func turns(p *Profile) []uint8 {
	sum := 0.0
	for i := range p.Templates {
		sum += p.Templates[i].Share
	}
	credit := make([]float64, len(p.Templates))
	out := make([]uint8, turnsLength)
	for k := range out {
		best := 0
		for i := range p.Templates {
			credit[i] += p.Templates[i].Share / sum
			if credit[i] > credit[best] {
				best = i
			}
		}
		credit[best]--
		out[k] = uint8(best)
	}
	return out
}
