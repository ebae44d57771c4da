package fragment

import (
	"testing"
	"time"
)

// units is the maximum length of the model's datagrams: they have at most three runs.
const units = 6

// model is a table with unlimited room, which has a flag for each unit that has arrived.
type model map[uint64]*modelContext

type modelContext struct {
	src, dst uint16
	id       uint32 // 0 until the table has chosen one
	seen     uint64
	poisoned bool
	come     [units]bool
	first    uint16
	total    uint16
	again    bool // complete, then its first fragment arrived again
}

func (c *modelContext) complete() bool {
	for i := range c.total {
		if !c.come[i] {
			return false
		}
	}
	return c.total != 0
}

func (c *modelContext) over(now uint64) bool {
	return now-c.seen >= uint64(Life) || c.again && now-c.seen >= uint64(duplicateAge)
}

func (m model) record(now, key uint64, src, dst, to uint16) (*modelContext, Status) {
	c := m[key]
	same := c != nil && c.src == src && c.dst == dst
	fresh := &modelContext{src: src, dst: dst, seen: now, first: to}
	for i := range to {
		fresh.come[i] = true
	}
	switch {
	case same && c.complete() && now-c.seen < uint64(duplicateAge):
		fresh.id, fresh.again = c.id, true
		m[key] = fresh
	case c == nil || c.complete() || now-c.seen >= uint64(reuseAge) || c.over(now):
		m[key] = fresh
	case c.poisoned || !same || to > c.first:
		c.poisoned = true
		return c, Overlap
	}
	return m[key], Known
}

func (m model) later(now, key uint64, from, to uint16, last bool) (*modelContext, Status) {
	c := m[key]
	if c == nil || c.over(now) {
		return nil, Unknown
	}
	if c.poisoned {
		return nil, Overlap
	}
	fits := c.total == 0 || last && to == c.total || !last && to < c.total
	if c.complete() {
		if now-c.seen >= uint64(duplicateAge) || !fits {
			return nil, Unknown
		}
		return c, Known
	}
	known, beyond := 0, false
	for i := from; i < units; i++ {
		switch {
		case i < to && c.come[i]:
			known++
		case i >= to && last && c.come[i]:
			beyond = true
		}
	}
	duplicate := known == int(to-from) && (!last || c.total != 0)
	if from < c.first || !fits || beyond || known != 0 && !duplicate {
		c.poisoned = true
		return nil, Overlap
	}
	if duplicate {
		return c, Known
	}
	for i := from; i < to; i++ {
		c.come[i] = true
	}
	if last {
		c.total = to
	}
	c.seen = now
	return c, Known
}

// FuzzFragments plays any sequence of first and later fragments, and of time, against the model.
// Each step is four bytes: operation, datagram, ports or time, place. There are as many datagrams
// as the table has room for, five to a bucket, so that it forgets none.
func FuzzFragments(f *testing.F) {
	f.Add([]byte{0, 1, 1, 0, 1, 1, 0, 0x81})                               // in order, complete
	f.Add([]byte{1, 1, 0, 0x81, 0, 1, 1, 0, 1, 1, 0, 0x81})                // first one last
	f.Add([]byte{0, 1, 1, 0, 0, 1, 1, 0, 1, 1, 0, 0x81, 1, 1, 0, 0x81})    // duplicates
	f.Add([]byte{0, 1, 1, 0, 0, 1, 2, 0, 1, 1, 0, 0x81, 0, 1, 1, 0})       // overlap
	f.Add([]byte{0, 1, 1, 0, 1, 1, 0, 0x81, 0, 1, 2, 0, 1, 1, 0, 0x81})    // complete, then reused
	f.Add([]byte{0, 1, 1, 0, 1, 1, 0, 0x81, 0, 1, 1, 0, 0, 1, 2, 0})       // a late duplicate between
	f.Add([]byte{0, 1, 1, 0, 2, 0, 9, 0, 0, 1, 2, 0, 1, 1, 0, 1})          // incomplete, then reused
	f.Add([]byte{0, 1, 1, 0, 1, 1, 0, 0x81, 3, 0, 5, 0, 1, 1, 0, 0x81})    // a duplicate that is too late
	f.Add([]byte{0, 1, 1, 0, 1, 1, 0, 0x8b, 1, 1, 0, 3, 1, 1, 0, 1})       // reversed, then beyond the end
	f.Add([]byte{0, 0, 1, 0, 0, 16, 1, 0, 0, 32, 2, 0, 0, 48, 3, 0, 0, 1}) // one bucket
	f.Fuzz(func(t *testing.T, steps []byte) {
		table, m := newTable(t, 80), model{}
		now := uint64(time.Hour)
		for ; len(steps) >= 4; steps = steps[4:] {
			n := uint64(steps[1]) % 80
			key := n/minBuckets<<32 | n%minBuckets // five keys for each of sixteen buckets
			switch steps[0] % 4 {
			case 0:
				src, dst, to := uint16(steps[2]%4)+1, uint16(steps[2]/4%2)+1, uint16(steps[3])%(units-1)+1
				c, want := m.record(now, key, src, dst, to)
				id, got := table.Record(now, Datagram{Key: key, To: to}, src, dst)
				if got != want {
					t.Fatalf("record %d: %v, want %v", n, got, want)
				}
				if got == Known && c.id == 0 {
					c.id = id
				} else if got == Known && c.id != id {
					t.Fatalf("record %d: id %d, want %d", n, id, c.id)
				}
			case 1:
				from := uint16(steps[3])%(units-1) + 1
				to, last := from+uint16(steps[3]>>4&7)%(units-from)+1, steps[3]&0x80 != 0
				c, want := m.later(now, key, from, to, last)
				var first First
				if c != nil {
					first = First{Src: c.src, Dst: c.dst, ID: c.id}
				}
				f, got := table.Later(now, Datagram{Key: key, From: from, To: to, Last: last})
				if got != want || f != first {
					t.Fatalf("later %d, %d to %d, last %v: %+v %v, want %+v %v", n, from, to, last, f, got, first, want)
				}
			case 2:
				now += uint64(steps[2]) * uint64(time.Second) / 8
			case 3:
				now += uint64(steps[2]%8) * uint64(time.Millisecond)
			}
		}
	})
}
