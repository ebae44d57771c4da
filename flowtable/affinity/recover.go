package affinity

import (
	"errors"
	"fmt"
	"math/bits"
	"unsafe"

	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/mapped"
)

// ErrLayout means that the memory has a table of another version or size, or none: its pins cannot
// be recovered.
var ErrLayout = errors.New("affinity: another layout")

// Recovery counts the previous process's pins by their outcome.
type Recovery struct {
	Kept    int
	Ended   int // expired
	Damaged int // in the wrong place, with an impossible time, or a second pin of a key: dropped
	Fresh   bool
	Why     string // why Fresh
}

// head is the first page of a file.
type head struct {
	magic    uint64
	version  uint32
	setBytes uint32
	clients  uint64
	size     int64
	secret   flowtable.HashKey
}

const (
	headBytes   = 4096
	headMagic   = 0x7974696e69666661 // "affinity", little endian
	headVersion = 2
)

// Size returns how many bytes of memory a table needs in a file.
func Size(c Config) (int64, error) {
	if err := c.check(); err != nil {
		return 0, err
	}
	const page = headBytes
	sets := int64(c.sets()) * int64(unsafe.Sizeof(set{}))
	return headBytes + (sets+page-1)&^(page-1), nil
}

// view returns the table and the head in memory of Size bytes.
func view(mem []byte, c *Config) (*Table, *head) {
	t := &Table{clients: c.Clients, sets: mapped.Slice[set](mem, headBytes, c.sets())}
	return t, &mapped.Slice[head](mem, 0, 1)[0]
}

func (c *Config) describe(size int) head {
	return head{magic: headMagic, version: headVersion, setBytes: uint32(unsafe.Sizeof(set{})),
		clients: uint64(c.Clients), size: int64(size)}
}

// format makes memory an empty table.
func format(mem []byte, c *Config) *Table {
	clear(mem)
	t, h := view(mem, c)
	*h = c.describe(len(mem))
	if h.secret = c.HashKey; h.secret == (flowtable.HashKey{}) {
		h.secret = flowtable.RandomHashKey()
	}
	t.secret = h.secret
	return t
}

// recoverTable recovers the table that another process left in memory, at any point where it
// stopped. It fails with ErrLayout if the memory holds another version or size.
func recoverTable(mem []byte, c *Config, now flowtable.Time) (t *Table, r Recovery, err error) {
	if t, err = openView(mem, c); err != nil {
		return nil, r, err
	}
	for i := range t.sets {
		t.recoverSet(&t.sets[i], ticksAt(now), &r)
	}
	return t, r, nil
}

// openView returns the table in mem, which must have this version and size, and changes nothing.
// Otherwise it fails with ErrLayout.
func openView(mem []byte, c *Config) (*Table, error) {
	t, h := view(mem, c)
	want := c.describe(len(mem))
	want.secret = h.secret
	switch {
	case h.magic != want.magic:
		return nil, fmt.Errorf("%w: no affinity table here", ErrLayout)
	case h.version != want.version:
		return nil, fmt.Errorf("%w: version %d, this program has %d", ErrLayout, h.version, want.version)
	case *h != want:
		return nil, fmt.Errorf("%w: made for %d clients, configured are %d", ErrLayout, h.clients, want.clients)
	case h.secret == (flowtable.HashKey{}):
		return nil, fmt.Errorf("%w: no hash key", ErrLayout)
	}
	t.secret = h.secret
	return t, nil
}

// Layout describes the memory of a table of a configuration. Two programs can share the memory if
// their layouts are equal.
func Layout(c Config) string { return fmt.Sprintf("version %d, %d clients", headVersion, c.Clients) }

// recoverSet keeps the undamaged pins of a set. It frees claimed slots: no reader has used their
// contents.
func (t *Table) recoverSet(s *set, now ticks, r *Recovery) {
	kept := uint64(0)
	var other entry
	for m := s.ctl.Load() & slotMask; m != 0; m &= m - 1 {
		at := bits.TrailingZeros64(m)
		e := s.slots[at].load()
		home, tag := t.place(&e.key)
		switch left := e.until().since(now); {
		case left < 0:
			r.Ended++
		case home != s || tag != s.tag(at) || left > int32(ticks(0).after(MaxSeconds)) ||
			s.find(kept, tag, &e.key, &other) >= 0:
			r.Damaged++
		default:
			r.Kept++
			kept |= 1 << at
		}
	}
	s.ctl.Store(kept)
}
