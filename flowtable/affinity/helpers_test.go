package affinity

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"os"
	"strconv"
	"testing"
	"time"

	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

const (
	second   = flowtable.Time(time.Second)
	bootTime = 12345 * second // a round number of ticks
)

// testSeed is the one seed of all random tests; set SLUICE_SEED to repeat a run.
func testSeed(t testing.TB) uint64 {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("SLUICE_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 0, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("SLUICE_SEED=%d", seed)
	return seed
}

func testTable(t testing.TB, clients int) *Table {
	t.Helper()
	tb, err := NewHeap(Config{Clients: clients})
	if err != nil {
		t.Fatal(err)
	}
	return tb
}

// client and backend return the n-th address; even ones are IPv4.
func client(n int) header.Addr { return addrN(10, n) }

func backend(n int) Pin { return Pin{Addr: addrN(20, n), Port: uint16(8000 + n)} }

func addrN(net byte, n int) header.Addr {
	if n%2 == 0 {
		return header.AddrFrom4([4]byte{net, byte(n >> 16), byte(n >> 8), byte(n)})
	}
	a := header.Addr{0x20, 0x01, 0x0d, 0xb8, net}
	binary.BigEndian.PutUint64(a[8:], uint64(n))
	return a
}

// validate checks the invariants of each set; no goroutine may use the table meanwhile.
func validate(t testing.TB, tb *Table) {
	t.Helper()
	for i := range tb.sets {
		if err := tb.check(&tb.sets[i]); err != nil {
			t.Fatalf("set %d: %v", i, err)
		}
	}
}

func (t *Table) check(s *set) error {
	c := s.ctl.Load()
	if claimed := c >> claimShift & slotMask; claimed != 0 {
		return fmt.Errorf("slots %010b are claimed without a writer", claimed)
	}
	keys := map[[3]uint64]bool{}
	for m := c & slotMask; m != 0; m &= m - 1 {
		at := bits.TrailingZeros64(m)
		e := s.slots[at].load()
		home, tag := t.place(&e.key)
		if keys[e.key] {
			return fmt.Errorf("slot %d: a second pin of %x", at, e.key)
		}
		keys[e.key] = true
		if home != s || tag != s.tag(at) {
			return fmt.Errorf("slot %d: a pin in the wrong set or with the wrong tag", at)
		}
	}
	return nil
}
