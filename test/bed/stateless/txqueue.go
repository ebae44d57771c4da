package stateless

import (
	"sync/atomic"

	"sluice.dev/sluice/fastpath"
)

// txQueue sends packets on one link: the send loop. One thread owns it.
type txQueue struct {
	link      fastpath.Link
	pool      *fastpath.Pool
	mem       []byte // the UMEM
	frameSize uint64
	writer    *writer

	batch []fastpath.Desc
	have  int // packets in batch that the link has not taken yet

	packets, bytes uint64 // taken by the link
	refused        uint64 // times it took nothing
}

// begin makes the queue ready for a trial. All frames must have come back from the
// last one to be prepared; if not, packets cost a copy of their template.
func (q *txQueue) begin(w *writer, burst int) {
	q.writer, q.have = w, 0
	q.packets, q.bytes, q.refused = 0, 0, 0
	if cap(q.batch) < burst {
		q.batch = make([]fastpath.Desc, burst)
	}
	q.link.Complete(q.pool)
	if q.pool.Free() < q.pool.Total() {
		return
	}
	for frame := range q.pool.Total() {
		at := uint64(frame) * q.frameSize
		w.prepare(q.mem[at : at+q.frameSize])
	}
}

// burst writes up to n packets stamped now and sends them. It returns how many the
// link took.
func (q *txQueue) burst(now uint64, n int) int {
	q.link.Complete(q.pool)
	n = min(n, len(q.batch))
	for q.have < n {
		at, ok := q.pool.Get()
		if !ok {
			break
		}
		d := &q.batch[q.have]
		d.Addr, d.Len = at, q.writer.next(q.mem[at:at+q.frameSize], now)
		q.have++
	}
	took := q.link.Transmit(q.batch[:q.have])
	q.link.Flush()
	for i := range took {
		q.bytes += uint64(q.batch[i].Len)
	}
	q.packets += uint64(took)
	q.have = copy(q.batch, q.batch[took:q.have])
	if took == 0 {
		q.refused++
	}
	return took
}

// run sends until the pacer reports the end, or until stop, and returns when
// that was.
func (q *txQueue) run(p *pacer, c *clock, stop *atomic.Bool) uint64 {
	for !stop.Load() {
		now := c.now()
		n, done := p.due(now)
		if done {
			break
		}
		if n == 0 {
			p.wait(now)
			continue
		}
		p.taken += uint64(q.burst(now, int(n)))
	}
	return c.now()
}

// settle waits until the device is done with everything, at most for a while. It frees the frames
// that the link would not take: those packets were never sent.
func (q *txQueue) settle(c *clock) {
	for _, d := range q.batch[:q.have] {
		q.pool.Put(d.Addr)
	}
	q.have = 0
	const patience = 200_000_000
	for until := c.now() + patience; q.link.Frames() > 0 && c.now() < until; {
		q.link.Flush()
		q.link.Complete(q.pool)
	}
}
