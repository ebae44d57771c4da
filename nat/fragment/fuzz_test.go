package fragment

import (
	"testing"
	"time"
)

// model is the table with all the room in the world.
type model map[uint64]*modelContext

type modelContext struct {
	src, dst uint16
	id       uint32
	born     uint64
	poisoned bool
}

func (m model) record(now, key uint64, src, dst uint16) Status {
	c := m[key]
	switch {
	case c == nil || now-c.born >= uint64(time.Second):
		m[key] = &modelContext{src: src, dst: dst, born: now}
		return Known
	case c.poisoned || c.src != src || c.dst != dst:
		c.poisoned = true
		return Overlap
	}
	return Known
}

func (m model) lookup(now, key uint64) (modelContext, Status) {
	c := m[key]
	switch {
	case c == nil || now-c.born >= uint64(2*time.Second):
		return modelContext{}, Unknown
	case c.poisoned:
		return modelContext{}, Overlap
	}
	return *c, Known
}

// FuzzFragments plays any sequence of first and later fragments, and of time, against the model.
// Each step is three bytes: what, which datagram, how. There are as many datagrams as the table has
// room for, five to a bucket, so that it forgets none.
func FuzzFragments(f *testing.F) {
	f.Add([]byte{0, 1, 1, 1, 1, 0})                                      // in order
	f.Add([]byte{1, 1, 0, 1, 1, 0, 0, 1, 1, 1, 1, 0})                    // first one last
	f.Add([]byte{0, 1, 1, 0, 1, 1, 1, 1, 0})                             // duplicate
	f.Add([]byte{0, 1, 1, 0, 1, 2, 1, 1, 0, 0, 1, 1})                    // overlap
	f.Add([]byte{0, 1, 1, 2, 0, 9, 0, 1, 2, 1, 1, 0})                    // identification used again
	f.Add([]byte{0, 1, 1, 2, 0, 200, 2, 0, 200, 1, 1, 0, 0, 1, 1})       // expiry
	f.Add([]byte{0, 0, 1, 0, 16, 1, 0, 32, 2, 0, 48, 3, 0, 64, 4, 1, 0}) // one bucket, full
	f.Fuzz(func(t *testing.T, steps []byte) {
		table, m := newTable(t, 80), model{}
		now := uint64(time.Hour)
		for ; len(steps) >= 3; steps = steps[3:] {
			n := uint64(steps[1]) % 80
			key := n/minBuckets<<32 | n%minBuckets // five keys for each of sixteen buckets
			switch steps[0] % 3 {
			case 0:
				src, dst := uint16(steps[2]%4)+1, uint16(steps[2]/4%2)+1
				want := m.record(now, key, src, dst)
				id, got := table.Record(now, Datagram{Key: key}, src, dst)
				if got != want {
					t.Fatalf("record %d: %v, want %v", n, got, want)
				}
				if c := m[key]; got == Known && c.born == now && c.id == 0 {
					c.id = id
				} else if got == Known && c.id != id {
					t.Fatalf("record %d: id %d, want %d", n, id, c.id)
				}
			case 1:
				want, status := m.lookup(now, key)
				src, dst, id, got := table.Lookup(now, key)
				if got != status || src != want.src || dst != want.dst || id != want.id {
					t.Fatalf("lookup %d: %d %d %d %v, want %+v %v", n, src, dst, id, got, want, status)
				}
			case 2:
				now += uint64(steps[2]) * uint64(time.Second) / 8
			}
		}
	})
}
