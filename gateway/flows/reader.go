package flows

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/serve/status"
)

// Reader is the control side's access to the flow table: a participant, which is online only while
// it copies a slice.
type Reader struct {
	mu     sync.Mutex // one participant, several callers
	handle *flowtable.Handle
	slice  [256]flowtable.Info
	closed bool // the table's memory may be unmapped
	// services has the snapshot in which the flows' Services and backends are looked up.
	services *services.Handle
	ports    portSurvey
	group    *Group
}

// Group is what a Reader needs to know about the group of the gateway.
type Group struct {
	// Verdicts returns for each slot of the flow table whether other gateways have copies of its
	// flow; nil if none can have one.
	Verdicts func(slots []uint32) []group.Verdict
	// HostLink reports whether an address is the gateway's on the host link.
	HostLink func(netip.Addr) bool
	// Name returns the name of another gateway; its number is as in flowtable.Info.CopyOf.
	Name func(owner int) string
}

// Join makes Page say which flows other gateways have copies of. It must be called before Page.
func (r *Reader) Join(g *Group) { r.group = g }

var errClosed = errors.New("the daemon is ending: flows can no longer be read")

// NewReader registers a participant in the flow table. services has the workers' snapshot.
func NewReader(t *flowtable.Table, services *services.Handle) (*Reader, error) {
	h, err := t.Register()
	if err != nil {
		return nil, err
	}
	return &Reader{handle: h, services: services}, nil
}

// Close unregisters the participant. Later calls return no flows.
func (r *Reader) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handle.Close()
	r.closed = true
}

// Pause blocks all calls until Resume, so that the reader does not use the table.
func (r *Reader) Pause() { r.mu.Lock() }

// Resume ends Pause.
func (r *Reader) Resume() { r.mu.Unlock() }

// each calls f for the flows of one slice from cursor on, and returns the next cursor; 0 is the
// end. f must not keep the Info.
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

// all calls f for every flow. Other callers may run after each slice.
func (r *Reader) all(f func(*flowtable.Info)) {
	for cursor := r.each(0, f); cursor != 0; {
		cursor = r.each(cursor, f)
	}
}

// Count returns the number of flows that match, and describes the first one.
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

// Page appends the flows that f selects to page, from cursor on, and returns the next cursor; 0 is
// the end. It ends after a whole slice of the table, so the page may exceed limit by less than one
// slice.
func (r *Reader) Page(
	f *status.FlowFilter, cursor uint64, limit int, page []status.FlowView,
) ([]status.FlowView, uint64) {
	s := r.snapshot()
	start := len(page)
	var slots []uint32 // of the flows of a slice that other gateways may have copies of
	for {
		slots = slots[:0]
		first := len(page)
		cursor = r.each(cursor, func(i *flowtable.Info) {
			v := view(i, s)
			if !f.Match(&v) {
				return
			}
			if r.group != nil {
				switch v.Group = r.group.without(i, s); v.Group {
				case "":
					slots = append(slots, r.handle.Table().Slot(i.Ref))
				case status.GroupCopy:
					v.Owner = r.group.Name(i.CopyOf)
				}
			}
			page = append(page, v)
		})
		if len(slots) > 0 {
			r.group.with(page[first:], slots)
		}
		if cursor == 0 || len(page)-start >= limit {
			return page, cursor
		}
	}
}

// Delete ends the flows that f selects and returns their number. Copies stay: their owner would
// count them as protected, and only the owner can end a flow.
func (r *Reader) Delete(ctx context.Context, f *status.FlowFilter) (int, error) {
	s := r.snapshot()
	return r.delete(ctx, flowtable.EndDeleted, deletePatience, func(i *flowtable.Info) bool {
		v := view(i, s)
		return i.CopyOf == 0 && f.Match(&v)
	})
}

// DeleteClients ends the flows of the clients that match, and returns their number. Copies stay, as
// in Delete.
func (r *Reader) DeleteClients(ctx context.Context, match func(netip.Addr) bool) (int, error) {
	return r.delete(ctx, flowtable.EndDeleted, deletePatience, func(i *flowtable.Info) bool {
		return i.CopyOf == 0 && match(i.Client.Src.Netip())
	})
}

// EndAll ends all flows, because the gateway ends and leaves none behind.
func (r *Reader) EndAll() {
	_, _ = r.delete(context.Background(), flowtable.EndStopped, stopPatience,
		func(*flowtable.Info) bool { return true })
}

// EndOf ends the flows with source addresses of a list: the gateway may have been away while the
// ports of these were given to other clients.
func (r *Reader) EndOf(list []netip.Addr) (int, error) {
	return r.delete(context.Background(), flowtable.EndStopped, 0, func(i *flowtable.Info) bool {
		return slices.Contains(list, i.Reply.Dst.Netip())
	})
}

// Bounds of the waits for the flow log, which may hang with its disk. Then it loses lines: a loop
// with a heartbeat ends flows of denied clients, and the next process waits for the end of this
// one.
const (
	logPatience    = time.Second // of one wait; without room after it the call waits no more
	deletePatience = 5 * time.Second
	stopPatience   = 30 * time.Second
)

// awaitLog waits until the flow log has room for the ends of n flows, but no longer than left, nor
// than logPatience. It returns the rest of left, or 0 if there is still no room. It does not hold
// r.mu while it waits.
func (r *Reader) awaitLog(n int, left time.Duration) time.Duration {
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		room := r.closed || r.handle.LogRoom(n)
		r.mu.Unlock()
		waited := time.Since(began)
		switch {
		case room:
			return max(0, left-waited)
		case waited >= min(left, logPatience):
			return 0
		}
	}
}

// snapshot returns the published snapshot, or an empty one before the first.
func (r *Reader) snapshot() *services.Snapshot {
	if s := r.services.Load(); s != nil {
		return s
	}
	return &services.Snapshot{}
}

// delete ends the flows that match. It waits for the flow log for patience in all.
func (r *Reader) delete(
	ctx context.Context, why flowtable.End, patience time.Duration, match func(*flowtable.Info) bool,
) (n int, err error) {
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
		// The participant stays online from reading to deleting, so that a record that was read is
		// not reused for another flow meanwhile.
		r.handle.Enter(now)
		next, found := r.handle.Dump(cursor, r.slice[:], now)
		refs = refs[:0]
		for i := range r.slice[:found] {
			if match(&r.slice[i]) {
				refs = append(refs, r.slice[i].Ref)
			}
		}
		for _, ref := range refs {
			r.handle.DeleteFor(ref, why)
		}
		r.handle.Leave()
		r.mu.Unlock()
		if len(refs) > 0 && patience > 0 {
			patience = r.awaitLog(len(r.slice), patience)
		}
		n += len(refs)
		cursor = next
	}
	return n, nil
}

// Adopt binds the flows that an earlier process left to their backends, like a worker does when a
// packet arrives, so that idle connections count from the start. It returns their number. The first
// table must be published; workers may run.
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
	r.handle.Enter(now) // online from reading to binding, as in delete
	defer r.handle.Leave()
	s := r.services.Load() // again for each slice: numbers of an old snapshot may be reused
	next, found := r.handle.Dump(cursor, r.slice[:], now)
	for i := range r.slice[:found] {
		f := &r.slice[i]
		if f.Binding != 0 || f.Backend != 0 {
			continue
		}
		toBackend := f.Reply.Reverse()
		service, backend := decide.Adopt(s, &f.Client, &toBackend)
		if f.Direct {
			service, backend = decide.AdoptDirect(s, &f.Client, f.Mark)
		}
		if backend != 0 && r.handle.Adopt(f.Ref, service, backend) {
			*adopted++
			decide.Recharge(s, r.handle, f.Ref, now)
		}
	}
	return next
}
