package stateful

import (
	"fmt"
	"net/netip"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// Failure is the reason why a connection was not completed.
type Failure uint8

// Reasons why connections are not completed.
const (
	Unanswered Failure = iota // no answer to any SYN
	Refused                   // RST in answer to SYN
	Reset                     // RST later
	Timeout                   // no answer, or no acknowledgement
	Closed                    // FIN before the last step
	Corrupt                   // received bytes differ from the template's
	failures
)

func (f Failure) String() string {
	return [failures]string{"unanswered", "refused", "reset", "timeout", "closed early", "corrupt"}[f]
}

// Counts are one template's counters at one engine. All but Active only grow.
type Counts struct {
	Opened      uint64 // client: SYN or first datagram sent; server: received
	Connected   uint64 // handshakes
	Completed   uint64 // every step done, and closed in both directions
	Failed      [failures]uint64
	Retransmits uint64 // segments and datagrams sent again
	ResetsIn    uint64
	ResetsOut   uint64
	BytesIn     uint64 // of messages
	BytesOut    uint64
	Violations  uint64 // connections that met two servers
	Moved       uint64 // UDP: like a Violation, but the first server had been removed meanwhile
	Retupled    uint64 // answers of a server that saw another client address or port than before
	Active      int64
}

func (c *Counts) add(o *Counts) {
	c.Opened += o.Opened
	c.Connected += o.Connected
	c.Completed += o.Completed
	for i := range c.Failed {
		c.Failed[i] += o.Failed[i]
	}
	c.Retransmits += o.Retransmits
	c.ResetsIn += o.ResetsIn
	c.ResetsOut += o.ResetsOut
	c.BytesIn += o.BytesIn
	c.BytesOut += o.BytesOut
	c.Violations += o.Violations
	c.Moved += o.Moved
	c.Retupled += o.Retupled
	c.Active += o.Active
}

// Failures is the sum of all reasons.
func (c *Counts) Failures() (n uint64) {
	for _, f := range c.Failed {
		n += f
	}
	return n
}

// PacketCounts are an engine's counters outside templates.
type PacketCounts struct {
	In, Out     uint64
	BadChecksum uint64
	Stray       uint64 // without a connection
	OutOfOrder  uint64 // segments dropped, to be retransmitted
	Ignored     uint64 // other destination, or unknown protocol
	Full        uint64 // server: new connections without a free record
	NoTuple     uint64 // client: attempts without a free address and port
	Reused      uint64 // TIME_WAIT ended by a younger connection
	CutShort    uint64 // TIME_WAIT ended because room was needed
}

// Stats are an engine's counters. The engine's goroutine owns them.
type Stats struct {
	Packets   PacketCounts
	Templates []Counts
	// Microseconds by template; client only. Whole is from the first SYN or datagram to the end of
	// the last step: the last byte of the last answer, if the server sends the last step.
	Connect, FirstByte, Whole []*hdr.Histogram
	Violations                []Violation // the first few
}

// keptViolations is how many violations are kept with details.
const keptViolations = 10

const (
	longestUS         = 60_000_000
	significantDigits = 3
)

// NewStats returns the Stats of a new engine.
func NewStats(p *Profile) Stats {
	s := Stats{Templates: make([]Counts, len(p.Templates)), Violations: make([]Violation, 0, keptViolations)}
	for range p.Templates {
		s.Connect = append(s.Connect, hdr.New(1, longestUS, significantDigits))
		s.FirstByte = append(s.FirstByte, hdr.New(1, longestUS, significantDigits))
		s.Whole = append(s.Whole, hdr.New(1, longestUS, significantDigits))
	}
	return s
}

// Total is the sum over all templates.
func (s *Stats) Total() (c Counts) {
	for i := range s.Templates {
		c.add(&s.Templates[i])
	}
	return c
}

// Violation is a connection that met two servers.
type Violation struct {
	Template       string
	Client, Target netip.AddrPort
	First, Then    netip.Addr    // servers
	Opened, Seen   time.Duration // since the engine began
}

func (v *Violation) String() string {
	return fmt.Sprintf("%s %s to %s: opened at %.3f s with server %s, met %s at %.3f s",
		v.Template, v.Client, v.Target, v.Opened.Seconds(), v.First, v.Then, v.Seen.Seconds())
}
