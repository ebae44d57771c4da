package stateful

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// CaptureConfig selects the packets of a capture.
type CaptureConfig struct {
	Conversations int  // maximum
	Bytes         bool // copy the bytes that clients sent, instead of their size
}

// DefaultCapture returns the command's defaults.
func DefaultCapture() CaptureConfig { return CaptureConfig{Conversations: 16} }

// FromCapture writes the conversations of a capture as a profile.
func FromCapture(out io.Writer, path string, c CaptureConfig) error {
	if c.Conversations < 1 || c.Conversations > MaxTemplates {
		return fmt.Errorf("%d conversations: 1 to %d are possible", c.Conversations, MaxTemplates)
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	defer f.Close()
	templates, err := readCapture(f, c)
	if err != nil {
		return fmt.Errorf("capture %s: %w", path, err)
	}
	_, err = io.WriteString(out, profileText(path, templates, c))
	return err
}

// packetSource is the common interface of pcap and pcapng readers.
type packetSource interface {
	gopacket.PacketDataSource
	LinkType() layers.LinkType
}

// openCapture reads pcapng, or otherwise pcap.
func openCapture(f io.ReadSeeker) (packetSource, error) {
	if ng, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions); err == nil {
		return ng, nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	p, err := pcapgo.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("is neither pcap nor pcapng: %w", err)
	}
	return p, nil
}

// endpointPair is one direction of a conversation.
type endpointPair struct {
	network, transport gopacket.Flow
	protocol           Protocol
}

func (p endpointPair) reverse() endpointPair {
	return endpointPair{p.network.Reverse(), p.transport.Reverse(), p.protocol}
}

// conversation is the part read so far of the exchange between two endpoints.
type conversation struct {
	Template
	next    [2]uint32 // TCP: the next expected sequence number of each side
	met     [2]bool   // and whether it is known
	last    time.Time
	partial bool // its beginning is not in the capture, or a segment is missing
	over    bool
	fin     bool
}

// readCapture collects conversations in order of their first packets.
func readCapture(f io.ReadSeeker, c CaptureConfig) ([]Template, error) {
	source, err := openCapture(f)
	if err != nil {
		return nil, err
	}
	all := map[endpointPair]*conversation{}
	var order []*conversation
	for {
		data, info, err := source.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		p := gopacket.NewPacket(data, source.LinkType(), gopacket.DecodeOptions{Lazy: true, NoCopy: true})
		if p.NetworkLayer() == nil || p.TransportLayer() == nil {
			continue
		}
		k := endpointPair{network: p.NetworkLayer().NetworkFlow(), transport: p.TransportLayer().TransportFlow()}
		switch p.TransportLayer().(type) {
		case *layers.TCP:
			k.protocol = ProtocolTCP
		case *layers.UDP:
			k.protocol = ProtocolUDP
		default:
			continue
		}
		conv, side := all[k], Client
		if conv == nil {
			conv, side = all[k.reverse()], Server
		}
		if conv == nil || conv.over && begins(p) {
			conv, side = newConversation(p, k), Client
			all[k] = conv
			delete(all, k.reverse())
			order = append(order, conv)
		}
		conv.add(p, side, info.Timestamp, c)
	}
	return chosen(order, c), nil
}

func begins(p gopacket.Packet) bool {
	t, ok := p.TransportLayer().(*layers.TCP)
	return ok && t.SYN && !t.ACK
}

func newConversation(p gopacket.Packet, k endpointPair) *conversation {
	c := &conversation{partial: k.protocol == ProtocolTCP && !begins(p)}
	c.Protocol, c.Share = k.protocol, 1
	c.Port = uint16(portOf(k.transport.Dst()))
	return c
}

func portOf(e gopacket.Endpoint) int {
	raw := e.Raw()
	return int(raw[0])<<8 | int(raw[1])
}

// add adds one packet.
func (c *conversation) add(p gopacket.Packet, side Side, at time.Time, config CaptureConfig) {
	switch t := p.TransportLayer().(type) {
	case *layers.TCP:
		if t.SYN {
			c.next[side], c.met[side] = t.Seq+1, true
			if c.last.IsZero() {
				c.last = at
			}
			return
		}
		if t.FIN && !c.fin {
			c.fin, c.Close = true, side
		}
		c.over = c.over || t.FIN || t.RST
		c.addSegment(t, side, at, config)
	case *layers.UDP:
		if len(t.Payload) > 0 {
			c.say(side, t.Payload, at, config)
		}
	}
}

// addSegment adds the new bytes of a segment. A missing segment makes the conversation partial.
func (c *conversation) addSegment(t *layers.TCP, side Side, at time.Time, config CaptureConfig) {
	payload := t.Payload
	if len(payload) == 0 {
		return
	}
	if !c.met[side] || before(c.next[side], t.Seq) {
		c.partial = true
		return
	}
	old := c.next[side] - t.Seq
	if old >= uint32(len(payload)) {
		return // seen before
	}
	payload = payload[old:]
	c.next[side] += uint32(len(payload))
	c.say(side, payload, at, config)
}

// thinkAtLeast is the shortest think time: shorter pauses are attributed to the network.
const thinkAtLeast = time.Millisecond

// say appends a message to the last step if the same side sent it, or begins another step.
func (c *conversation) say(side Side, payload []byte, at time.Time, config CaptureConfig) {
	after := at.Sub(c.last).Truncate(time.Millisecond)
	if c.last.IsZero() || after < thinkAtLeast {
		after = 0
	}
	c.last = at
	n := len(c.Steps)
	if n > 0 && c.Steps[n-1].From == side && after == 0 {
		s := &c.Steps[n-1]
		if c.Protocol == ProtocolTCP {
			s.Size += len(payload)
			s.Bytes = append(s.Bytes, payload...)
			return
		}
		if s.Size == len(payload) && s.Count < MaxDatagrams {
			s.Count++
			return
		}
	}
	s := Step{From: side, Size: len(payload), Count: 1, After: after, Bytes: slices.Clone(payload)}
	if n == 0 {
		s.After = 0
	}
	c.Steps = append(c.Steps, s)
}

// chosen converts complete conversations into templates for a profile: equal ones become one
// template with a larger share, and ports are distinct.
func chosen(order []*conversation, config CaptureConfig) (list []Template) {
	seen := map[string]int{}
	ports := map[string]bool{}
	for _, c := range order {
		if c.partial || len(c.Steps) == 0 || c.Steps[0].From != Client || len(c.Steps) > MaxSteps {
			continue
		}
		for i := range c.Steps {
			s := &c.Steps[i]
			if s.From == Server {
				s.Size = max(s.Size, TagBytes)
			}
			if !config.Bytes || s.From == Server || s.Count > 1 {
				s.Bytes = nil
			}
			if s.Bytes == nil && c.Protocol == ProtocolUDP {
				s.Size = max(s.Size, TagBytes)
			}
		}
		text := stepsText(&c.Template)
		if i, ok := seen[text]; ok {
			list[i].Share++
			continue
		}
		if len(list) == config.Conversations {
			continue
		}
		wanted := c.Port
		for ports[fmt.Sprint(c.Protocol, c.Port)] {
			c.Port = max(c.Port+1, 1024)
		}
		ports[fmt.Sprint(c.Protocol, c.Port)] = true
		c.Name = fmt.Sprintf("%s-%d-%d", c.Protocol, wanted, len(list)+1)
		c.Timeout = longestThink(c.Steps) + 5*time.Second
		seen[text] = len(list)
		list = append(list, c.Template)
	}
	slices.SortStableFunc(list, func(a, b Template) int { return cmp.Compare(b.Share, a.Share) })
	return list
}

func longestThink(steps []Step) (d time.Duration) {
	for i := range steps {
		d = max(d, steps[i].After)
	}
	return d
}

// stepsText is a template's YAML without name, port and share.
func stepsText(t *Template) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  protocol: %s\n", t.Protocol)
	if t.Protocol == ProtocolTCP {
		fmt.Fprintf(&b, "  close: %s\n", t.Close)
	}
	b.WriteString("  steps:\n")
	for i := range t.Steps {
		s := &t.Steps[i]
		fmt.Fprintf(&b, "  - {from: %s", s.From)
		if s.Bytes != nil {
			fmt.Fprintf(&b, ", hex: %q", hex.EncodeToString(s.Bytes))
		} else {
			fmt.Fprintf(&b, ", size: %d", s.Size)
		}
		if s.Count > 1 && t.Protocol == ProtocolUDP {
			fmt.Fprintf(&b, ", count: %d", s.Count)
		}
		if s.After > 0 {
			fmt.Fprintf(&b, ", after: %s", s.After)
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// profileText is a profile with these templates, with initial rates.
func profileText(path string, list []Template, c CaptureConfig) string {
	var b strings.Builder
	note := "sizes only"
	if c.Bytes {
		note = "it contains what clients sent"
	}
	fmt.Fprintf(&b, "# From a capture, %d conversations, %s. Change rates, pools and vip.\n", len(list),
		note)
	name := strings.TrimSuffix(path[strings.LastIndexByte(path, '/')+1:], ".pcap")
	fmt.Fprintf(&b, "name: %q\nduration: 20s\nconnectionsPerSecond: 1000\nconcurrency: %d\n", name, 1<<bits.Len(9999))
	b.WriteString("clients: {addresses: 10.81.0.1-10.81.0.16, ports: 10000-59999}\nservers: {addresses: " +
		"10.82.0.1-10.82.0.8}\nvip: 10.83.0.1\ntemplates:\n")
	for i := range list {
		t := &list[i]
		fmt.Fprintf(&b, "- name: %s\n  port: %d\n  share: %g\n  timeout: %s\n%s", t.Name, t.Port, t.Share, t.Timeout,
			stepsText(t))
	}
	return b.String()
}
