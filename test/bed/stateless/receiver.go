package stateless

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// receiver receives the packets of one trial after another.
type receiver interface {
	// begin forgets everything and expects the packets of a run.
	begin(run uint16) error
	// packets is how many have arrived since.
	packets() (uint64, error)
	// end stops receiving and returns the counters.
	end() (Received, error)
	samples() ([][]byte, error)
	close() error
}

// program is the XDP program of the receiving interface, attached.
type program struct {
	objects receiveObjects
	xdp     link.Link
	flows   int
	before  receiveCounts // at begin
}

// attachProgram loads the programs for this traffic and attaches one.
func attachProgram(t *Traffic, r *Rx) (*program, error) {
	spec, err := loadReceive()
	if err != nil {
		return nil, err
	}
	l := newLayout(t, *r.VLANs)
	var v6, timed uint32
	if l.v6 {
		v6 = 1
	}
	if r.Method == Timed {
		timed = 1
	}
	for name, value := range map[string]uint32{
		receiveVarL3Offset: uint32(l.l3), receiveVarTagOffset: uint32(l.tag),
		receiveVarLaterTagOffset: uint32(l.laterTag),
		receiveVarV6:             v6, receiveVarFlowCount: uint32(t.Flows),
		receiveVarTimed: timed, receiveVarKept: uint32(r.Keep),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("program of the receiver: %s: %w", name, err)
		}
	}
	spec.Maps[receiveMapArrivals].MaxEntries = uint32(max(r.Keep, 1))
	spec.Maps[receiveMapFlows].MaxEntries = uint32(t.Flows+63) / 64
	p := &program{flows: t.Flows}
	if err := spec.LoadAndAssign(&p.objects, nil); err != nil {
		return nil, fmt.Errorf("load the program of the receiver (CAP_BPF and CAP_NET_ADMIN are needed): %w", err)
	}
	if err := p.attach(r); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *program) attach(r *Rx) error {
	xdp := p.objects.Count
	if r.Method == Full {
		xdp = p.objects.RedirectTagged
	}
	return r.Port.Run(func() error {
		dev, err := netlink.LinkByName(r.Port.Interface)
		if err != nil {
			return fmt.Errorf("interface %s: %w", r.Port.Interface, err)
		}
		options := link.XDPOptions{Program: xdp, Interface: dev.Attrs().Index, Flags: link.XDPDriverMode}
		p.xdp, err = link.AttachXDP(options)
		if errors.Is(err, unix.EOPNOTSUPP) { // the driver has none
			options.Flags = link.XDPGenericMode
			p.xdp, err = link.AttachXDP(options)
		}
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("interface %s has an XDP program already (`ip link show %s`): receive somewhere else: %w",
				r.Port.Interface, r.Port.Interface, err)
		}
		if err != nil {
			return fmt.Errorf("interface %s: attach the program of the receiver: %w", r.Port.Interface, err)
		}
		return nil
	})
}

func (p *program) begin(run uint16) error {
	zero := make([]uint64, (p.flows+63)/64)
	keys := make([]uint32, len(zero))
	for i := range keys {
		keys[i] = uint32(i)
	}
	if _, err := p.objects.Flows.BatchUpdate(keys, zero, nil); err != nil {
		return fmt.Errorf("forget the flows seen: %w", err)
	}
	if err := p.objects.Run.Set(uint32(run)); err != nil {
		return fmt.Errorf("tell the receiver the run: %w", err)
	}
	var err error
	p.before, _, err = p.totals()
	return err
}

// totals are the counters since the program was attached, and the packets by CPU.
func (p *program) totals() (sum receiveCounts, cpus []uint64, err error) {
	var each []receiveCounts
	if err := p.objects.Totals.Lookup(uint32(0), &each); err != nil {
		return sum, nil, fmt.Errorf("read the receiver's counters: %w", err)
	}
	for _, c := range each {
		sum.Packets += c.Packets
		sum.Bytes += c.Bytes
		sum.Foreign += c.Foreign
		sum.Stale += c.Stale
		cpus = append(cpus, c.Packets)
	}
	return sum, cpus, nil
}

// seen counts the flows of which a packet arrived.
func (p *program) seen() (n int, err error) {
	words := make([]uint64, (p.flows+63)/64)
	keys := make([]uint32, len(words))
	var cursor ebpf.MapBatchCursor
	got, err := p.objects.Flows.BatchLookup(&cursor, keys, words, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, fmt.Errorf("read the flows seen: %w", err)
	}
	for _, w := range words[:got] {
		n += bits.OnesCount64(w)
	}
	return n, nil
}

// samples are starts of packets of any run since the program was attached.
func (p *program) samples() (out [][]byte, err error) {
	var s receiveSample
	for i := range p.objects.Samples.MaxEntries() {
		if err := p.objects.Samples.Lookup(i, &s); err != nil {
			return nil, fmt.Errorf("read samples: %w", err)
		}
		if s.Len == 0 {
			continue
		}
		n := len(s.Bytes)
		if int(s.Len) < n {
			n = minFrameBytes - fcsBytes // the program copies so many of a short one
		}
		out = append(out, append([]byte(nil), s.Bytes[:n]...))
	}
	return out, nil
}

func (p *program) close() error {
	var err error
	if p.xdp != nil {
		err = p.xdp.Close()
	}
	return errors.Join(err, p.objects.Close())
}

// counter is the receiver of Count: the program alone.
type counter struct {
	*program
	base []uint64 // packets by CPU at begin
}

func (c *counter) begin(run uint16) error {
	if err := c.program.begin(run); err != nil {
		return err
	}
	var err error
	_, c.base, err = c.totals()
	return err
}

func (c *counter) packets() (uint64, error) {
	sum, _, err := c.totals()
	return sum.Packets - c.before.Packets, err
}

func (c *counter) end() (Received, error) {
	sum, cpus, err := c.totals()
	if err != nil {
		return Received{}, err
	}
	flows, err := c.seen()
	r := Received{
		Packets: sum.Packets - c.before.Packets, Bytes: sum.Bytes - c.before.Bytes, Flows: flows,
		Foreign: sum.Foreign - c.before.Foreign + sum.Stale - c.before.Stale,
	}
	for i, n := range cpus {
		r.Queues = append(r.Queues, n-c.base[i])
	}
	return r, err
}
