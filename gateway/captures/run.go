package captures

import (
	"context"
	"errors"
	"time"

	"sluice.dev/sluice/fastpath/capture"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/serve/status"
)

// readEvery is the time between two readings of the rings: a ring has room for the packets of
// several.
const readEvery = 10 * time.Millisecond

// Run captures the packets that q selects until ctx ends, End is called, or out returns an error.
func (s *Set) Run(ctx context.Context, q *status.CaptureQuery, out status.CaptureWriter) (status.CaptureView, error) {
	tap, err := s.tapOf(q)
	if err != nil {
		return status.CaptureView{}, err
	}
	r := &reader{set: s, tap: tap, service: q.Service}
	r.findServices()
	if q.Service != "" && r.found == 0 {
		return status.CaptureView{}, errors.New("no Service " + q.Service + ", see `sluice services`")
	}
	running, slot, err := s.begin(ctx, tap)
	if err != nil {
		return status.CaptureView{}, err
	}
	err = r.write(running, q, out)
	s.mu.Lock()
	cause := context.Cause(running)
	s.remove(slot)
	s.mu.Unlock()
	if err == nil {
		err = r.finish(out)
	}
	var ended *endedError
	if errors.As(cause, &ended) {
		r.view.Ended = ended.why
	}
	r.count()
	return r.view, err
}

// reader reads the rings of one capture.
type reader struct {
	set     *Set
	tap     *capture.Tap
	file    *file
	view    status.CaptureView
	service string // filter; empty: all

	generation uint64 // of the snapshot in which found service ports were searched
	found      int
}

// write begins the file, and writes records until ctx ends.
func (r *reader) write(ctx context.Context, q *status.CaptureQuery, out status.CaptureWriter) (err error) {
	c := &r.set.c
	if r.file, err = newFile(out, c.Interfaces, c.Version, r.tap.Snap); err != nil {
		return err
	}
	tick := time.NewTicker(readEvery)
	defer tick.Stop()
	for {
		if err := r.drain(); err != nil {
			return err
		}
		if err := r.file.flush(); err != nil {
			return err
		}
		if err := out.Flush(); err != nil {
			return err
		}
		r.findServices()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// finish writes the remaining records and the statistics. The workers do not have the tap any more.
func (r *reader) finish(out status.CaptureWriter) error {
	if err := r.drain(); err != nil {
		return err
	}
	r.count()
	if err := r.file.finish(&r.view); err != nil {
		return err
	}
	return out.Flush()
}

func (r *reader) count() {
	r.view.OverRate, r.view.Lost = 0, 0
	for _, ring := range r.tap.Rings {
		r.view.OverRate += ring.Over.Load()
		r.view.Lost += ring.Lost.Load()
	}
}

// drain writes the records that the workers have published, oldest first.
func (r *reader) drain() (err error) {
	snapshot := r.set.c.Services.Load()
	r.file.clock()
	for {
		oldest, first := -1, uint64(0)
		for id, ring := range r.tap.Rings {
			if at, ok := ring.Peek(); ok && (oldest < 0 || at < first) {
				oldest, first = id, at
			}
		}
		if oldest < 0 {
			return nil
		}
		ports := r.set.c.Ports(oldest)
		r.tap.Rings[oldest].Read(func(rec *capture.Record, b []byte) bool {
			r.view.Records++
			err = r.file.packet(oldest, ports, rec, b, snapshot)
			return false
		})
		if err != nil {
			return err
		}
	}
}

// findServices tells the workers which service ports the filter selects now.
func (r *reader) findServices() {
	s := r.set.c.Services.Load()
	if r.service == "" || s == nil || s.Generation == r.generation {
		return
	}
	r.generation = s.Generation
	var list []uint32
	s.Frontends(func(f *services.Frontend) bool {
		if status.MatchService(r.service, f.Service.FullName()) {
			list = append(list, uint32(f.Service.ID))
		}
		return true
	})
	set := capture.NewServices(list)
	r.found = set.Len()
	r.tap.SetServices(set)
}
