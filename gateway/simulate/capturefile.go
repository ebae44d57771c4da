package simulate

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"sluice.dev/sluice/fastpath/capture"
	"sluice.dev/sluice/gateway/captures"
)

// captured is a packet of a capture.
type captured struct {
	data  []byte // the recorded part of the frame, valid until the next packet is read
	bytes int    // length of the frame
	at    time.Time
	// point is where `sluice capture` recorded the packet; another program's captures (points is
	// false) do not have it.
	points    bool
	point     capture.Point
	generated bool // by the gateway
	foreign   bool // the packet is no Ethernet frame
}

// captureFile reads a capture as a stream.
type captureFile struct {
	name  string
	close func() error
	ng    *pcapgo.NgReader // nil: plain has the packets
	plain *pcapgo.Reader
	links map[layers.LinkType]bool // other than Ethernet
	// read counts all packets, ethernet the Ethernet frames.
	read, ethernet uint64
	cut            bool // the file ends within a packet
	dropsOnly      bool // all packets were recorded by `sluice capture` where they were dropped
}

// Magic numbers, in big endian: of a section header (draft-ietf-opsawg-pcapng) and of pcap in both
// byte orders, with microseconds and nanoseconds (draft-ietf-opsawg-pcap), and of gzip (RFC 1952).
const (
	magicSection = 0x0a0d0d0a
	magicPcap    = 0xa1b2c3d4
	magicNano    = 0xa1b23c4d
	magicGzip    = 0x1f8b
)

// openCapture opens a capture, "-" for standard input. The capture may be compressed by gzip.
func openCapture(name string) (*captureFile, error) {
	f := &captureFile{name: name, close: func() error { return nil }, links: map[layers.LinkType]bool{}}
	var in io.Reader = os.Stdin
	if name == "-" {
		f.name = "standard input"
	} else {
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("capture: %w", err)
		}
		in, f.close = file, file.Close
	}
	if err := f.begin(in); err != nil {
		return nil, errors.Join(fmt.Errorf("capture: %s: %w", f.name, err), f.close())
	}
	return f, nil
}

var errNoCapture = errors.New("is neither pcap nor pcapng: give a file that `sluice capture -w` or tcpdump -w has " +
	"written")

// begin reads the beginning of the file.
func (f *captureFile) begin(in io.Reader) error {
	b := bufio.NewReader(in)
	if magic, _ := b.Peek(2); len(magic) == 2 && binary.BigEndian.Uint16(magic) == magicGzip {
		unpacked, err := gzip.NewReader(b)
		if err != nil {
			return err
		}
		b = bufio.NewReader(unpacked)
	}
	magic, err := b.Peek(4)
	switch {
	case errors.Is(err, io.EOF) && len(magic) == 0:
		return errors.New("is empty")
	case errors.Is(err, io.EOF):
		return errNoCapture
	case err != nil:
		return err
	}
	switch little, big := binary.LittleEndian.Uint32(magic), binary.BigEndian.Uint32(magic); {
	case big == magicSection:
		f.ng, err = pcapgo.NewNgReader(b, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	case big == magicPcap, big == magicNano, little == magicPcap, little == magicNano:
		f.plain, err = pcapgo.NewReader(b)
	default:
		return errNoCapture
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return errors.New("ends within its first header: record it again")
	}
	return err
}

// next returns the next packet, or io.EOF.
func (f *captureFile) next() (captured, error) {
	p, ci, err := f.packet()
	switch {
	case errors.Is(err, io.EOF):
		return p, io.EOF
	case errors.Is(err, io.ErrUnexpectedEOF): // the writer was killed
		f.cut = true
		return p, io.EOF
	case err != nil:
		return p, fmt.Errorf("capture: %s: after %d packets: %w", f.name, f.read, err)
	}
	p.at, p.bytes = ci.Timestamp, max(ci.Length, len(p.data))
	drop := p.points && p.point == capture.Dropped
	f.dropsOnly = drop && (f.dropsOnly || f.read == 0)
	f.read++
	if !p.foreign {
		f.ethernet++
	}
	return p, nil
}

// packet reads a packet in either form.
func (f *captureFile) packet() (p captured, ci gopacket.CaptureInfo, err error) {
	if f.ng == nil {
		p.data, ci, err = f.plain.ZeroCopyReadPacketData()
		p.foreign = f.foreign(f.plain.LinkType())
		return p, ci, err
	}
	var o pcapgo.NgPacketOptions
	if p.data, ci, o, err = f.ng.ZeroCopyReadPacketDataWithOptions(); err != nil {
		return p, ci, err
	}
	i, err := f.ng.Interface(ci.InterfaceIndex)
	if err != nil {
		return p, ci, err
	}
	p.foreign = f.foreign(i.LinkType)
	p.point, p.points = captures.PointOf(&i)
	p.generated = p.points && len(o.Comments) > 0 && captures.IsGenerated(o.Comments[0])
	return p, ci, nil
}

func (f *captureFile) foreign(t layers.LinkType) bool {
	if t == layers.LinkTypeEthernet {
		return false
	}
	f.links[t] = true
	return true
}
