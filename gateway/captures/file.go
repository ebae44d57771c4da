package captures

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"sluice.dev/sluice/fastpath/capture"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/serve/status"
)

// file writes records as pcapng (draft-ietf-opsawg-pcapng).
//
//	interface 2n    arriving packets of port n
//	interface 2n+1  leaving packets of port n
//	the last one    dropped packets
type file struct {
	w       *pcapgo.NgWriter
	began   time.Time
	dropped int   // number of the interface for dropped packets
	offset  int64 // nanoseconds from CLOCK_BOOTTIME to the wall clock
	comment strings.Builder
	inbound pcapgo.NgEpbFlags
	outward pcapgo.NgEpbFlags
}

// The descriptions of interfaces, followed by the name of the gateway's interface.
const (
	cameInBy    = "packets that came in by "
	leftBy      = "packets that left by "
	wereDropped = "packets that the gateway dropped"
)

// PointOf returns the point at which a capture records the packets of one of its interfaces; ok is
// false for an interface of another program's capture.
func PointOf(i *pcapgo.NgInterface) (p capture.Point, ok bool) {
	switch {
	case strings.HasPrefix(i.Description, cameInBy):
		return capture.In, true
	case strings.HasPrefix(i.Description, leftBy):
		return capture.Out, true
	}
	return capture.Dropped, i.Description == wereDropped
}

// IsGenerated reports whether a comment of a capture says that the gateway made the packet.
func IsGenerated(comment string) bool {
	return strings.HasPrefix(comment, verdictWord+verdicts[capture.Generated]+" ")
}

func newFile(out io.Writer, names []string, version string, snap int) (*file, error) {
	f := &file{began: time.Now(), dropped: 2 * len(names)}
	f.inbound.Direction, f.outward.Direction = pcapgo.NgEpbFlagDirectionInbound, pcapgo.NgEpbFlagDirectionOutbound
	var list []pcapgo.NgInterface
	for _, name := range names {
		list = append(list, pcapgo.NgInterface{Name: name + " in", Description: cameInBy + name},
			pcapgo.NgInterface{Name: name + " out", Description: leftBy + name})
	}
	list = append(list, pcapgo.NgInterface{Name: "dropped", Description: wereDropped})
	for i := range list {
		list[i].LinkType, list[i].TimestampResolution, list[i].OS = layers.LinkTypeEthernet, 9, runtime.GOOS
		list[i].SnapLength = uint32(snap)
	}
	var err error
	f.w, err = pcapgo.NewNgWriterInterface(out, list[0], pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{
		Hardware: runtime.GOARCH, OS: runtime.GOOS, Application: "sluice " + version,
	}})
	if err != nil {
		return nil, err
	}
	for i := range list[1:] {
		if _, err := f.w.AddInterface(list[1+i]); err != nil {
			return nil, err
		}
	}
	return f, f.w.Flush()
}

// clock compares the clocks again: the wall clock may be set, and the machine suspended.
func (f *file) clock() { f.offset = boottime.Offset() }

// packet writes a record of a worker. ports has the ports of the worker's links.
func (f *file) packet(worker int, ports []int, r *capture.Record, b []byte, s *services.Snapshot) error {
	o := pcapgo.NgPacketOptions{Comments: []string{f.describe(worker, r, s)}}
	id := f.dropped
	switch r.Point {
	case capture.In:
		id, o.Flags = 2*ports[r.Link], &f.inbound
	case capture.Out:
		id, o.Flags = 2*ports[r.Link]+1, &f.outward
	}
	return f.w.WritePacketWithOptions(gopacket.CaptureInfo{
		Timestamp: time.Unix(0, int64(r.At)+f.offset), CaptureLength: len(b), Length: int(r.Bytes), InterfaceIndex: id,
	}, b, o)
}

var verdicts = map[capture.Verdict]string{
	capture.Forwarded: "forward", capture.ToKernel: "kernel", capture.Drop: "drop", capture.Generated: "generated",
}

const verdictWord = "verdict="

// describe returns a packet's comment: words of the form key=value.
func (f *file) describe(worker int, r *capture.Record, s *services.Snapshot) string {
	c := &f.comment
	c.Reset()
	c.WriteString(verdictWord + verdicts[r.Verdict])
	if r.Verdict == capture.Drop {
		c.WriteString(" reason=" + r.Reason.String())
	}
	if s != nil && r.Flow.Service != 0 {
		if p := s.Service(services.ServiceID(r.Flow.Service)); p != nil {
			c.WriteString(" service=" + p.FullName())
		}
	}
	if w := &r.Flow; w.Known {
		side := "client"
		if w.Reply {
			side = "backend"
		}
		if w.Backend != w.Frontend { // otherwise it has direct return
			fmt.Fprintf(c, " backend=%v snat=%v", w.Backend.AddrPort(), w.Source.AddrPort())
		}
		fmt.Fprintf(c, " client=%v vip=%v protocol=%s from=%s", w.Client.AddrPort(), w.Frontend.AddrPort(),
			status.ProtocolName(w.Proto), side)
	}
	fmt.Fprintf(c, " worker=%d", worker)
	return c.String()
}

func (f *file) flush() error { return f.w.Flush() }

// finish writes the statistics of the capture at its last interface, and flushes.
func (f *file) finish(v *status.CaptureView) error {
	now := time.Now()
	err := f.w.WriteInterfaceStats(f.dropped, pcapgo.NgInterfaceStatistics{
		LastUpdate: now, StartTime: f.began, EndTime: now,
		Comment: fmt.Sprintf("of all interfaces: %d packets recorded, %d over the rate, %d lost because the reader "+
			"was slow", v.Records, v.OverRate, v.Lost),
		PacketsReceived: v.Records + v.OverRate + v.Lost, PacketsDropped: v.OverRate + v.Lost,
	})
	if err != nil {
		return err
	}
	return f.w.Flush()
}
