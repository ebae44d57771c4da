package fragment

import "fmt"

// Layout describes the layout of Contents, which must be the same in both processes.
func Layout() string {
	return fmt.Sprintf("%d fragment contexts of %d words in %d words", entriesPer, entryWords, bucketWords)
}

// Contents is the state of the table that a process needs to take over from another.
type Contents struct {
	Secret           [2]uint64 // keys and identifications depend on it
	NextID4, NextID6 uint32
	Buckets          []Bucket // with a datagram whose fragments may still arrive
}

// Bucket is one bucket of the table.
type Bucket struct {
	At    int // its number in the table
	Words [bucketWords]uint64
}

// Contents returns the state of the table, with the buckets that have a live entry. No goroutine
// may use the table meanwhile.
func (t *Table) Contents(now uint64) Contents {
	c := Contents{Secret: t.secret, NextID4: t.nextID4.Load(), NextID6: t.nextID6.Load()}
	for at := range len(t.mem) / bucketWords {
		b := t.bucket(uint64(at))
		alive := false
		for i := range entriesPer {
			alive = alive || !b.entry(i).over(now)
		}
		if !alive {
			continue
		}
		copied := Bucket{At: at}
		for i := range b {
			copied.Words[i] = b[i].Load()
		}
		c.Buckets = append(c.Buckets, copied)
	}
	return c
}

// Assume copies the contents of another table of the same size to an empty table. No goroutine may
// use the table yet. It fails if a bucket's number is out of range.
func (t *Table) Assume(c Contents) error {
	t.secret = c.Secret
	t.nextID4.Store(c.NextID4)
	t.nextID6.Store(c.NextID6)
	for i := range c.Buckets {
		from := &c.Buckets[i]
		if from.At < 0 || from.At > int(t.mask) {
			return fmt.Errorf("fragment table: bucket %d of %d", from.At, t.mask+1)
		}
		b := t.bucket(uint64(from.At))
		for i := range b {
			b[i].Store(from.Words[i])
		}
	}
	return nil
}
