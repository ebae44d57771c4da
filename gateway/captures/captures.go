// Package captures runs the captures of `sluice capture`: it gives the workers a capture.Tap, reads
// its rings, and writes their records as pcapng.
//
//	worker ─► capture.Ring ─┐            names of interfaces,
//	worker ─► capture.Ring ─┴─► Set.Run ◄── Services, wall clock
//	                              │
//	                              ▼ pcapng
//	                        status.CaptureWriter
//
// The interfaces of a capture are the gateway's, each once for arriving and once for leaving
// packets, and one for dropped packets.
package captures

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/bpf"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/capture"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
)

// Workers is the part of workers.Group that a Set uses.
type Workers interface {
	Len() int
	SetTaps(ctx context.Context, list []*capture.Tap) error
}

// Config has the parts of the gateway that captures need.
type Config struct {
	Workers    Workers
	Interfaces []string        // by port, the host link last
	Ports      func(int) []int // the port of each link of a worker, by position
	Services   *services.Handle
	Version    string
}

// Set is the captures of a gateway.
type Set struct {
	c Config

	began [fastpath.MaxTaps]atomic.Int64 // Unix time in seconds; 0 where no capture runs

	mu    sync.Mutex // guards the fields below, and Workers.SetTaps, which may wait for seconds
	taps  [fastpath.MaxTaps]*capture.Tap
	ends  [fastpath.MaxTaps]context.CancelCauseFunc // nil where no capture runs
	ended error                                     // why no capture may begin, or nil
}

// New returns a Set without captures.
func New(c Config) *Set { return &Set{c: c} }

// endedError ends captures for a reason of the gateway's.
type endedError struct{ why string }

func (e *endedError) Error() string { return e.why }

// End ends all captures, and refuses new ones until Resume. A nil Set has none.
func (s *Set) End(why string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = &endedError{why}
	for _, end := range s.ends {
		if end != nil {
			end(s.ended)
		}
	}
	if s.taps != ([fastpath.MaxTaps]*capture.Tap{}) {
		s.taps = [fastpath.MaxTaps]*capture.Tap{}
		_ = s.apply(context.Background()) // a worker that does not step ends them later
	}
}

// Resume ends End.
func (s *Set) Resume() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = nil
}

// Conditions reports the captures that run, if there are any. A nil Set has none.
func (s *Set) Conditions() []status.ConditionView {
	if s == nil {
		return nil
	}
	n, oldest := 0, int64(math.MaxInt64)
	for slot := range s.began {
		if began := s.began[slot].Load(); began != 0 {
			n, oldest = n+1, min(oldest, began)
		}
	}
	if n == 0 {
		return nil
	}
	return []status.ConditionView{status.OK("captures", fmt.Sprintf("%d of %d captures run, the oldest since %s; "+
		"`sluice events` has who began them", n, len(s.began), time.Unix(oldest, 0).UTC().Format(time.RFC3339)))}
}

func (s *Set) apply(ctx context.Context) error {
	return s.c.Workers.SetTaps(ctx, slices.Clone(s.taps[:]))
}

// begin gives the workers a tap. ctx ends when the capture must end.
func (s *Set) begin(parent context.Context, tap *capture.Tap) (ctx context.Context, slot int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return nil, 0, s.ended
	}
	slot = slices.IndexFunc(s.ends[:], func(end context.CancelCauseFunc) bool { return end == nil })
	if slot < 0 {
		return nil, 0, fmt.Errorf("%d captures are running, and there is no memory for more: end one of them",
			len(s.taps))
	}
	ctx, s.ends[slot] = context.WithCancelCause(parent)
	s.taps[slot] = tap
	s.began[slot].Store(time.Now().Unix())
	if err := s.apply(parent); err != nil {
		s.remove(slot)
		return nil, 0, fmt.Errorf("the capture cannot begin: %w", err)
	}
	return ctx, slot, nil
}

// remove takes the tap of a slot from the workers. s.mu must be held.
func (s *Set) remove(slot int) {
	if s.taps[slot] != nil {
		s.taps[slot] = nil
		_ = s.apply(context.Background()) // a worker that does not step ends it later
	}
	s.ends[slot](nil)
	s.ends[slot] = nil
	s.began[slot].Store(0)
}

// Bounds of a capture's memory: the rings of all workers together have ringsBytes for packets, and
// each at least ringMinBytes.
const (
	ringsBytes   = 16 << 20
	ringMaxBytes = 1 << 20
	ringMinBytes = 1 << 18
	maxSnap      = ringMinBytes / 2
)

// tapOf makes the tap of a query.
func (s *Set) tapOf(q *status.CaptureQuery) (*capture.Tap, error) {
	f := capture.Filter{
		Client:    capture.NewEndpoint(q.Client.Prefix, q.Client.Port),
		Frontend:  capture.NewEndpoint(q.VIP.Prefix, q.VIP.Port),
		Backend:   capture.NewEndpoint(q.Backend.Prefix, q.Backend.Port),
		ByService: q.Service != "",
	}
	var err error
	if f.Reasons, err = reasonsOf(q.Drops); err != nil {
		return nil, err
	}
	if f.Expression, err = programOf(q.Program); err != nil {
		return nil, err
	}
	if q.Rate < 0 || q.Snap < 0 {
		return nil, errors.New("rate and snap must not be negative")
	}
	snap := q.Snap
	if snap == 0 || snap > maxSnap {
		snap = maxSnap
	}
	n := s.c.Workers.Len()
	ring := 1 << (bits.Len(uint(ringsBytes/n)) - 1)
	return capture.NewTap(f, snap, q.Rate, n, max(ringMinBytes, min(ring, ringMaxBytes))), nil
}

// deniedDropped is a counter of the kernel program, and no drop reason.
const deniedDropped = "denied_dropped"

// reasonsOf returns the bits of drop reasons by name.
func reasonsOf(names []string) (mask uint64, err error) {
	for _, name := range names {
		if name == status.CaptureAll {
			mask = ^uint64(0)
			continue
		}
		if name == deniedDropped {
			return 0, fmt.Errorf("%s: the kernel program drops packets of denied clients before a capture sees them; "+
				"`sluice deny list` counts them", name)
		}
		r, ok := reason.Parse(name)
		if !ok {
			return 0, fmt.Errorf("there is no drop reason %q: docs/counters.md lists them, and %q is each of "+
				"them", name, status.CaptureAll)
		}
		mask |= capture.Reasons(r)
	}
	return mask, nil
}

// programOf makes a filter of the numbers that `tcpdump -ddd` prints.
func programOf(numbers []uint32) (*bpf.VM, error) {
	if len(numbers) == 0 {
		return nil, nil
	}
	if len(numbers) != 1+4*int(numbers[0]) {
		return nil, fmt.Errorf("the filter has %d numbers: tcpdump -ddd prints the number of instructions, and four "+
			"numbers for each", len(numbers))
	}
	var list []bpf.Instruction
	for at := 1; at < len(numbers); at += 4 {
		raw := bpf.RawInstruction{Op: uint16(numbers[at]), Jt: uint8(numbers[at+1]), Jf: uint8(numbers[at+2]),
			K: numbers[at+3]}
		list = append(list, raw.Disassemble())
	}
	vm, err := bpf.NewVM(list)
	if err != nil {
		return nil, fmt.Errorf("the filter is no program of classic BPF, as tcpdump -y EN10MB -ddd prints it: %w", err)
	}
	return vm, nil
}
