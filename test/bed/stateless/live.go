package stateless

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/nat/checksum"
)

const (
	// testXDPLiveFrames is BPF_F_TEST_XDP_LIVE_FRAMES (include/uapi/linux/bpf.h).
	testXDPLiveFrames = 1 << 1
	// liveBatch is how many frames the kernel runs the program on before it flushes
	// the redirects; it is also how many pages it prepares.
	liveBatch = 64
	// A run prepares pages first, which costs some 20 us; runs of this many packets make that
	// little. At a limited rate a run is the packets due in a millisecond.
	liveRun           = 8192
	liveTogetherNanos = 1_000_000
)

// liveSender is a thread and a program per queue. The program makes packets of
// the frames that the kernel runs it on, and sends them into the interface.
type liveSender struct {
	traffic Traffic
	tx      Tx
	clock   clock
	ifindex int
}

func openLiveSender(t Traffic, tx Tx) (*liveSender, error) {
	a, err := tx.Port.attributes()
	if err != nil {
		return nil, err
	}
	s := &liveSender{traffic: t, tx: tx, clock: newClock(), ifindex: a.Index}
	objects, _, err := s.load(t.Run, 0) // so that a fault shows now
	if err != nil {
		return nil, err
	}
	return s, objects.Close()
}

// load loads the program for part q of the flows. It returns the frame to run it on.
func (s *liveSender) load(run uint16, q int) (*liveObjects, []byte, error) {
	spec, err := loadLive()
	if err != nil {
		return nil, nil, err
	}
	w := newWriter(&s.traffic, run, q, s.tx.Queues)
	plan, frame := s.plan(w, run)
	if err := spec.Variables[liveVarPlan].Set(plan); err != nil {
		return nil, nil, fmt.Errorf("program of the sender: %w", err)
	}
	state := liveProgress{Left: w.order.left}
	if err := spec.Variables[liveVarState].Set(state); err != nil {
		return nil, nil, fmt.Errorf("program of the sender: %w", err)
	}
	var objects liveObjects
	if err := spec.LoadAndAssign(&objects, nil); err != nil {
		return nil, nil, fmt.Errorf("load the program of the sender (CAP_BPF and CAP_NET_ADMIN are needed): %w", err)
	}
	return &objects, frame, nil
}

// plan copies a writer's settings for the program, and returns the longest template.
func (s *liveSender) plan(w *writer, run uint16) (*liveTraffic, []byte) {
	flag := func(b bool) uint32 {
		if b {
			return 1
		}
		return 0
	}
	l, t := &w.layout, &w.tuples
	p := &liveTraffic{
		Ifindex: uint32(s.ifindex), Run: uint32(run), SrcOffset: uint32(l.src), DstOffset: uint32(l.dst),
		PortsOffset: uint32(l.ports), TagOffset: uint32(l.tag), IpLenOffset: uint32(l.ipLen),
		IpSumOffset: uint32(l.ipSum),
		L4LenOffset: uint32(l.l4Len), L4SumOffset: uint32(l.l4Sum), Pseudo: flag(l.pseudo), Udp: flag(l.udp),
		Sources: t.src, Destinations: t.dst, SourcePort: t.srcPort, DestinationPort: t.dstPort,
		Flows: w.order.flows, FirstFlow: w.order.first, FlowStep: w.order.step,
		SizeCount: uint32(len(w.templates)), PatternLen: uint32(len(w.pattern)), Strides: w.order.strides,
	}
	p.SourceCount.By, p.SourceCount.Inverse = t.sources.by, t.sources.inverse
	p.SourcePortCount.By, p.SourcePortCount.Inverse = t.sourcePorts.by, t.sourcePorts.inverse
	p.DestinationCount.By, p.DestinationCount.Inverse = t.destinations.by, t.destinations.inverse
	copy(p.Pattern[:], w.pattern)
	longest := w.templates[0].bytes
	for i, m := range w.templates {
		size := &p.Sizes[i]
		size.FrameLen, size.IpLen, size.L4Len = uint32(len(m.bytes)), m.ipLen, m.l4Len
		size.IpSum, size.L4Sum = uint32(checksum.Fold(m.ipSum)), uint32(checksum.Fold(m.l4Sum))
		if len(m.bytes) > len(longest) {
			longest = m.bytes
		}
	}
	return p, longest
}

func (s *liveSender) send(l Load, run uint16, start uint64, stop *atomic.Bool) (Sent, error) {
	ends := make([]uint64, s.tx.Queues)
	states := make([]liveProgress, s.tx.Queues)
	cpu, missed := make([]time.Duration, s.tx.Queues), make([]uint64, s.tx.Queues)
	var g errgroup.Group
	for i := range s.tx.Queues {
		g.Go(func() error {
			return onPortThread(&s.tx, i, func() error {
				objects, frame, err := s.load(run, i)
				if err != nil {
					return err
				}
				p := newPacer(part(l, i, s.tx.Queues), start, liveRun, liveTogetherNanos, s.tx.Spin)
				defer objects.Close()
				a, err := newAnchor(objects.Live)
				if err != nil {
					return err
				}
				began := threadTime()
				ends[i], states[i], err = s.loop(objects, frame, p, stop)
				cpu[i] = threadTime() - began
				missed[i] = p.forgiven
				return errors.Join(err, a.close())
			})
		})
	}
	err := g.Wait()
	var sent Sent
	for i, st := range states {
		sent.Packets += st.Packets
		sent.Bytes += st.Bytes
		sent.CPU += cpu[i]
		sent.Missed += missed[i]
		flows := (s.traffic.Flows - i + s.tx.Queues - 1) / s.tx.Queues
		sent.Flows += int(min(st.Packets, uint64(flows)))
		sent.Elapsed = max(sent.Elapsed, time.Duration(ends[i]-min(start, ends[i])))
	}
	return sent, err
}

// loop runs the program until the pacer reports the end.
func (s *liveSender) loop(
	objects *liveObjects, frame []byte, p *pacer, stop *atomic.Bool,
) (uint64, liveProgress, error) {
	var state liveProgress
	for !stop.Load() {
		now := s.clock.now()
		n, done := p.due(now)
		if done {
			break
		}
		if n == 0 {
			p.wait(now)
			continue
		}
		// The program keeps to the quota even if the call is interrupted and repeated.
		if err := objects.State.Get(&state); err != nil {
			return 0, state, fmt.Errorf("state of the sender: %w", err)
		}
		state.Quota = n
		if err := objects.State.Set(state); err != nil {
			return 0, state, fmt.Errorf("state of the sender: %w", err)
		}
		_, err := objects.Live.Run(&ebpf.RunOptions{
			Data: frame, Repeat: uint32(n), Flags: testXDPLiveFrames, BatchSize: uint32(min(n, liveBatch)),
		})
		if errors.Is(err, unix.EINVAL) || errors.Is(err, ebpf.ErrNotSupported) {
			err = fmt.Errorf("%w: live frames of %d bytes: Linux 5.18 is needed, and frames that fit a page with its "+
				"headroom", err, len(frame))
		}
		if err != nil {
			return 0, state, fmt.Errorf("run the program of the sender: %w", err)
		}
		p.taken += n
	}
	end := s.clock.now()
	return end, state, errors.Join(objects.State.Get(&state))
}

func (s *liveSender) close() error { return nil }
