package flowtable

import (
	"unsafe"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/prefetch"
)

// oldest returns the oldest flow of a kind from the first ring that has one: a dead process's, the
// handle's own, and then other handles'.
func (h *Handle) oldest(a *arena, kind Shed, now Ticks) candidate {
	least := int32(0)
	if kind == ShedReset {
		least = conn.ResetGrace
	}
	for _, r := range h.nearRings(a, kind) {
		if r != nil {
			if c := h.oldestIn(r, a, kind, now, least); c.found() {
				return c
			}
		}
	}
	for range min(otherRings, int(h.t.watermark.Load())-1) {
		if c := h.oldestInDonor(a, kind, now, least); c.found() {
			return c
		}
		h.nextDonor()
	}
	return noCandidate
}

// nearRings returns the rings that are searched first for a kind, each nil if there is none: the
// ring of a dead process's flows, the handle's ring of settled flows, and the handle's ring of the
// kind.
func (h *Handle) nearRings(a *arena, kind Shed) (rings [3]*ring) {
	f, n := family(a.v6), int(kind-firstRing)
	if n < madeRings {
		rings[0] = h.t.leftover[f][n]
	}
	if kind == ShedHalfOpen {
		rings[1] = h.rings[f][settledRing]
	}
	rings[2] = h.rings[f][n]
	return rings
}

// oldestInDonor returns the oldest flow of a kind that the donor's rings have.
func (h *Handle) oldestInDonor(a *arena, kind Shed, now Ticks, least int32) candidate {
	if h.evictor.donor == h.id || h.evictor.donor >= int(h.t.watermark.Load()) {
		h.nextDonor()
	}
	if h.evictor.donor == h.id {
		return noCandidate
	}
	f, c := family(a.v6), noCandidate
	if r := h.t.ringAt(h.evictor.donor, f, settledRing); r != nil && kind == ShedHalfOpen {
		c = h.oldestIn(r, a, kind, now, least)
	}
	if r := h.t.ringAt(h.evictor.donor, f, int(kind-firstRing)); r != nil && !c.found() {
		c = h.oldestIn(r, a, kind, now, least)
	}
	return c
}

// nextDonor advances to the next participant other than this one, if there is another.
func (h *Handle) nextDonor() {
	n := int(h.t.watermark.Load())
	u := &h.evictor
	if u.donor = (u.donor + 1) % n; u.donor == h.id {
		u.donor = (u.donor + 1) % n
	}
}

// oldestIn returns the oldest flow in a ring that is of its kind and at least least ticks old, and
// drops the stale entries before it.
func (h *Handle) oldestIn(r *ring, a *arena, kind Shed, now Ticks, least int32) candidate {
	own := h.rings[family(a.v6)]
	head, from, to := r.bounds(r == own[kind-firstRing] || r == own[settledRing])
	found, first := noCandidate, from
	stride, run, young := uint64(1), 0, 0
	for n := 0; n < ringWindow && from < to && h.evictor.entries > 0; n++ {
		if ahead := from + ringAhead*stride; ahead < to {
			prefetch.Read((*byte)(unsafe.Pointer(a.flow(r.entry(ahead) & (1<<a.indexBits - 1)))))
		}
		h.evictor.entries--
		i, m, ok := a.still(r.entry(from), kind)
		// Drop an idle flow that was used again: it will not be idle soon.
		if !ok || h.t.lasts(a, i) ||
			(kind > ShedHalfOpen || kind == ShedOneSided) && h.t.shedOf(m, now) > kind {
			if run++; run >= ringRun && run%8 == 0 {
				stride *= 2
			}
			if from += stride; young == 0 {
				first = from
			}
			continue
		}
		if now.Since(m.Seen()) >= least {
			if h.t.lifetimes.Expired(m, now) {
				kind = ShedExpired
			}
			found = candidate{victim{i, m, kind}, a, r, from}
			break
		}
		if young++; young > ringYoung {
			break
		}
		from++
	}
	if found.kind == ShedIdle {
		h.leastUsed(&found, to, now)
		first = found.position
	}
	if first = min(first, to); first > head {
		r.head.CompareAndSwap(head, first)
	}
	return found
}

// leastUsed replaces an idle flow by the first of the next few in its ring that was used less. The
// entries before it are dropped from the ring until the sweep notes them again.
func (h *Handle) leastUsed(c *candidate, to uint64, now Ticks) {
	for p := c.position + 1; p < min(to, c.position+probeGroup) && h.evictor.entries > 0; p++ {
		h.evictor.entries--
		if i, m, ok := c.a.still(c.ring.entry(p), ShedIdle); ok && h.t.mayShed(c.a, i, m, now) == ShedIdle &&
			m.UsedSeconds() < c.meta.UsedSeconds() {
			c.victim, c.position = victim{i, m, ShedIdle}, p
			return
		}
	}
}
