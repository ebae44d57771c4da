package flows

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/boottime"
	"sluice.dev/sluice/serve/status"
)

// Reader is the control side's access to the flow table: a participant of its own, online only
// while a slice is copied.
type Reader struct {
	mu     sync.Mutex // one participant, several callers
	handle *flowtable.Handle
	slice  [256]flowtable.Info
	closed bool // the table's memory may be gone
	// services has the snapshot that flows are looked up in: their Services and backends.
	services *services.Handle
	ports    portSurvey
}

var errClosed = errors.New("the daemon is ending: flows can no longer be read")

// NewReader takes a place in the flow table. services has the snapshot that the workers use.
func NewReader(t *flowtable.Table, services *services.Handle) (*Reader, error) {
	h, err := t.Register()
	if err != nil {
		return nil, err
	}
	return &Reader{handle: h, services: services}, nil
}

// Close gives the place back. Later calls return no flows.
func (r *Reader) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handle.Close()
	r.closed = true
}

// Pause makes all calls wait until Resume, so that the reader is not at work in the table.
func (r *Reader) Pause() { r.mu.Lock() }

// Resume ends Pause.
func (r *Reader) Resume() { r.mu.Unlock() }

// each calls f for the flows of one slice from cursor on, and returns where to go
// on; 0 is the end. f must not keep the Info.
func (r *Reader) each(cursor uint64, f func(*flowtable.Info)) (next uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0
	}
	next, n := r.handle.Dump(cursor, r.slice[:], flowtable.Time(boottime.Nanos()))
	for i := range r.slice[:n] {
		f(&r.slice[i])
	}
	return next
}

// all calls f for every flow, with a pause for other callers after each slice.
func (r *Reader) all(f func(*flowtable.Info)) {
	for cursor := r.each(0, f); cursor != 0; {
		cursor = r.each(cursor, f)
	}
}

// Count counts the flows that match, and describes the first one.
func (r *Reader) Count(match func(*flowtable.Info) bool) (n int, first string) {
	r.all(func(f *flowtable.Info) {
		if !match(f) {
			return
		}
		if n++; n == 1 {
			c := &f.Client
			first = fmt.Sprintf("%s to %s", netip.AddrPortFrom(c.Src.Netip(), c.SrcPort),
				netip.AddrPortFrom(c.Dst.Netip(), c.DstPort))
		}
	})
	return n, first
}

// Page appends flows that f selects to page, from cursor on, and returns where to go on; 0 is the
// end. It ends with a slice of the table, so it may be longer than limit by less than one slice.
func (r *Reader) Page(
	f *status.FlowFilter, cursor uint64, limit int, page []status.FlowView,
) ([]status.FlowView, uint64) {
	s := r.snapshot()
	start := len(page)
	for {
		cursor = r.each(cursor, func(i *flowtable.Info) {
			if v := view(i, s); f.Match(&v) {
				page = append(page, v)
			}
		})
		if cursor == 0 || len(page)-start >= limit {
			return page, cursor
		}
	}
}

// Delete ends the flows that f selects and returns how many.
func (r *Reader) Delete(ctx context.Context, f *status.FlowFilter) (int, error) {
	s := r.snapshot()
	return r.delete(ctx, func(i *flowtable.Info) bool {
		v := view(i, s)
		return f.Match(&v)
	})
}

// snapshot is the published one, or an empty one before the first.
func (r *Reader) snapshot() *services.Snapshot {
	if s := r.services.Load(); s != nil {
		return s
	}
	return &services.Snapshot{}
}

// delete ends the flows that match.
func (r *Reader) delete(ctx context.Context, match func(*flowtable.Info) bool) (n int, err error) {
	var refs []flowtable.Ref
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		if ctx.Err() != nil {
			return n, ctx.Err()
		}
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			return n, errClosed
		}
		now := flowtable.Time(boottime.Nanos())
		// Online from the reading to the deleting: a record that was read is not
		// given to another flow meanwhile.
		r.handle.Enter(now)
		next, found := r.handle.Dump(cursor, r.slice[:], now)
		refs = refs[:0]
		for i := range r.slice[:found] {
			if match(&r.slice[i]) {
				refs = append(refs, r.slice[i].Ref)
			}
		}
		for _, ref := range refs {
			r.handle.Delete(ref)
		}
		r.handle.Leave()
		r.mu.Unlock()
		n += len(refs)
		cursor = next
	}
	return n, nil
}

// Adopt gives the flows that an earlier process left to their backends, as a worker does when a
// packet comes: a connection that rests counts from the start. It returns how many it gave. The
// first table must be published; workers may be at work.
func (r *Reader) Adopt() (n int) {
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		cursor = r.adoptSlice(cursor, &n)
	}
	return n
}

func (r *Reader) adoptSlice(cursor uint64, adopted *int) (next uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0
	}
	now := flowtable.Time(boottime.Nanos())
	r.handle.Enter(now) // from the reading to the giving, as in delete
	defer r.handle.Leave()
	s := r.services.Load() // for each slice: what it numbers may be given up when it is old
	next, found := r.handle.Dump(cursor, r.slice[:], now)
	for i := range r.slice[:found] {
		f := &r.slice[i]
		if f.Binding != 0 || f.Backend != 0 {
			continue
		}
		toBackend := f.Reply.Reverse()
		service, backend := decide.Adopt(s, &f.Client, &toBackend)
		if backend != 0 && r.handle.Adopt(f.Ref, service, backend) {
			*adopted++
			decide.Recharge(s, r.handle, f.Ref, now)
		}
	}
	return next
}
