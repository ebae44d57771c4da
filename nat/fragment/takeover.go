package fragment

import "fmt"

// Layout says what of Contents must be alike in both processes, in words.
func Layout() string {
	return fmt.Sprintf("%d fragment contexts of %d words in %d words", entriesPer, entryWords, bucketWords)
}

// Contents is what a process that goes on for another one needs of the table.
type Contents struct {
	Secret           [2]uint64 // keys and identifications depend on it
	NextID4, NextID6 uint32
	Buckets          []Bucket // with a datagram that may have fragments to come
}

// Bucket is one bucket of the table.
type Bucket struct {
	At    int // number
	Words [bucketWords]uint64
}

// Contents returns what is alive. Nobody may use the table meanwhile.
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

// Assume gives an empty table of the same size what another one had. Nobody may use the table yet.
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
