package fragment

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const start = uint64(time.Hour) & seenTime

func newTable(t testing.TB, contexts int) *Table {
	t.Helper()
	table, err := New(make([]atomic.Uint64, Words(contexts)), [2]uint64{0x0123456789abcdef, 0xfedcba9876543210})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestNewRefusesOtherSizes(t *testing.T) {
	for _, words := range []int{0, 1, 16, 255, 257, 16 * 24} {
		if _, err := New(make([]atomic.Uint64, words), [2]uint64{}); err == nil {
			t.Errorf("%d words accepted", words)
		}
	}
	for _, contexts := range []int{0, 1, 80, 81, 10_000} {
		if n := len(newTable(t, contexts).mem) / bucketWords * entriesPer; n < contexts {
			t.Errorf("%d contexts, want %d", n, contexts)
		}
	}
}

func TestRecordAndLookup(t *testing.T) {
	table := newTable(t, 80)
	if _, s := table.lookup(start, 42); s != Unknown {
		t.Errorf("an empty table knows: %v", s)
	}
	id, s := table.Record(start, Datagram{Key: 42}, 1000, 53)
	if s != Known {
		t.Fatalf("record: %v", s)
	}
	if f, s := table.lookup(start, 42); f != (First{Src: 1000, Dst: 53, ID: id}) || s != Known {
		t.Errorf("lookup: %+v %v", f, s)
	}
	if _, s := table.lookup(start, 43); s != Unknown {
		t.Errorf("another datagram: %v", s)
	}
	if again, s := table.Record(start+1, Datagram{Key: 42}, 1000, 53); again != id || s != Known {
		t.Errorf("a duplicate: id %d, want %d; %v", again, id, s)
	}
}

func TestContextsExpire(t *testing.T) {
	table := newTable(t, 80)
	table.Record(start, Datagram{Key: 42}, 1000, 53)
	if _, s := table.lookup(start+uint64(Life)-1, 42); s != Known {
		t.Errorf("just before: %v", s)
	}
	if _, s := table.lookup(start+uint64(Life), 42); s != Unknown {
		t.Errorf("after: %v", s)
	}
	if _, s := table.lookup(start-5, 42); s != Known {
		t.Errorf("on a clock that lags: %v", s)
	}
}

// RFC 5722: no fragment of a datagram with two different first fragments is forwarded.
func TestOverlapDropsTheDatagram(t *testing.T) {
	for _, ports := range [][2]uint16{{1001, 53}, {1000, 54}} {
		table := newTable(t, 80)
		table.Record(start, Datagram{Key: 42}, 1000, 53)
		if _, s := table.Record(start+1, Datagram{Key: 42}, ports[0], ports[1]); s != Overlap {
			t.Errorf("other ports: %v", s)
		}
		if _, s := table.Record(start+2, Datagram{Key: 42}, 1000, 53); s != Overlap {
			t.Errorf("the first ports again: %v", s)
		}
		if _, s := table.lookup(start+2, 42); s != Overlap {
			t.Errorf("lookup: %v", s)
		}
		if _, s := table.lookup(start+uint64(Life), 42); s != Unknown {
			t.Errorf("lookup a life later: %v", s)
		}
	}
}

// A reused identification belongs to a new datagram, which gets a new identification.
func TestReusedIdentification(t *testing.T) {
	table := newTable(t, 80)
	old, _ := table.Record(start, Datagram{Key: 42}, 1000, 53)
	id, s := table.Record(start+uint64(reuseAge), Datagram{Key: 42}, 2000, 53)
	if s != Known || id == old {
		t.Errorf("id %d after %d, %v", id, old, s)
	}
	if f, s := table.lookup(start+uint64(reuseAge), 42); f.Src != 2000 || f.ID != id || s != Known {
		t.Errorf("lookup: %+v %v", f, s)
	}
	if _, s := table.lookup(start+uint64(reuseAge)+uint64(Life)-1<<16, 42); s != Known {
		t.Errorf("its time began with the old datagram: %v", s)
	}
}

func TestIdentificationsDoNotRepeat(t *testing.T) {
	table := newTable(t, 1<<16)
	seen := make([]bool, 1<<16)
	inOrder := 0
	last := uint32(0)
	for key := range uint64(1 << 16) {
		id, s := table.Record(start, Datagram{Key: key * 0x9e3779b97f4a7c15}, 1, 2)
		if s != Known || seen[id] {
			t.Fatalf("datagram %d: id %d again, or %v", key, id, s)
		}
		seen[id] = true
		if id == last+1 {
			inOrder++
		}
		last = id
	}
	if inOrder > 20 {
		t.Errorf("%d of 65,536 identifications follow their predecessor", inOrder)
	}
}

// A hundred thousand datagrams pass through a small table: its memory does not grow, and it knows
// the youngest.
func TestFullTableEvictsTheOldest(t *testing.T) {
	table := newTable(t, 80)
	bucket := func(n uint64) uint64 { return n << 8 } // all in bucket 0
	for n := range uint64(100_000) {
		if _, s := table.Record(start+n<<16, Datagram{Key: bucket(n)}, 1, 2); s != Known {
			t.Fatalf("datagram %d: %v", n, s)
		}
	}
	for n := range uint64(10) {
		_, s := table.lookup(start+100_000<<16, bucket(99_999-n))
		if known := n < entriesPer; known != (s == Known) {
			t.Errorf("%d datagrams ago: %v", n, s)
		}
	}
}

// Any number of one network's datagrams evict no other network's; if each source has one, the
// oldest is evicted.
func TestSourcesShareBuckets(t *testing.T) {
	table := newTable(t, 80)
	now := start
	record := func(n uint64, source uint16) {
		now += 1 << 16
		table.Record(now, Datagram{Key: n << 8, Source: source}, 1, 2) // all in bucket 0
	}
	known := func(n uint64) bool {
		_, s := table.lookup(now, n<<8)
		return s == Known
	}
	for n := range uint64(3) {
		record(1+n, uint16(n)) // honest ones
	}
	for n := range uint64(1000) {
		record(100+n, 99)
	}
	for n := range uint64(3) {
		if !known(1 + n) {
			t.Errorf("datagram %d was evicted by another network", 1+n)
		}
	}
	if !known(1099) || !known(1098) || known(1097) {
		t.Error("older datagrams of the network that has most are known")
	}
	for n := range uint64(4) {
		record(2000+n, uint16(200+n)) // forged sources
	}
	for n, want := range map[uint64]bool{
		1: false, 2: false, 3: false, 1098: false, 1099: true, 2000: true, 2001: true, 2002: true, 2003: true,
	} {
		if known(n) != want {
			t.Errorf("sources with one datagram each: datagram %d is known: %v", n, !want)
		}
	}
}

// Several workers record and look up datagrams that compete for one bucket. Ports are computed from
// the key, so a context mixed from two would be detected.
func TestConcurrentWorkersSeeWholeContexts(t *testing.T) {
	table := newTable(t, 80)
	const workers, keys = 4, 3 * entriesPer
	// Under the race detector, which slows loads down, this is enough to detect a torn read if
	// there were no version.
	rounds := 500_000
	if testing.Short() {
		rounds /= 10
	}
	var wg sync.WaitGroup
	var hits atomic.Uint64
	for w := range uint64(workers) {
		wg.Go(func() {
			for i := range uint64(rounds) {
				n := (i*7 + w*5) % keys
				key := (n + 1) << 8 // bucket 0
				if i%2 == w%2 {
					d := Datagram{Key: key}
					if _, s := table.Record(start+i, d, uint16(n), uint16(n)+1); s != Known && s != Full {
						t.Errorf("record: %v", s)
						return
					}
					continue
				}
				f, s := table.lookup(start+i, key)
				if s == Overlap || s == Known && (f.Src != uint16(n) || f.Dst != uint16(n)+1) {
					t.Errorf("datagram %d has ports %d and %d, %v", n, f.Src, f.Dst, s)
					return
				}
				if s == Known {
					hits.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if hits.Load() == 0 {
		t.Error("no lookup found anything: the test shows nothing")
	}
}

// All workers that record the same datagram get the same identification.
func TestConcurrentRecordsAgree(t *testing.T) {
	table := newTable(t, 80)
	const workers = 4
	for n := range uint64(2000) {
		var got [workers]uint32
		var ready, wg sync.WaitGroup
		ready.Add(workers)
		for w := range workers {
			wg.Go(func() {
				ready.Done()
				ready.Wait()
				id, s := table.Record(start, Datagram{Key: (n + 1) * 0x9e3779b97f4a7c15}, 5, 6)
				for s == Full { // another worker was stopped while it wrote
					runtime.Gosched()
					id, s = table.Record(start, Datagram{Key: (n + 1) * 0x9e3779b97f4a7c15}, 5, 6)
				}
				if s != Known {
					t.Errorf("record: %v", s)
				}
				got[w] = id
			})
		}
		wg.Wait()
		for _, id := range got {
			if id != got[0] {
				t.Fatalf("datagram %d: %v", n, got)
			}
		}
	}
}

// A bucket that stays busy, as if its writer had been stopped, affects only its own datagrams.
func TestBusyBucketIsBounded(t *testing.T) {
	table := newTable(t, 80)
	table.Record(start, Datagram{Key: 42}, 1, 2)
	table.bucket(42).lock()
	if _, s := table.Record(start, Datagram{Key: 42}, 1, 2); s != Full {
		t.Errorf("record: %v", s)
	}
	if _, s := table.Later(start, Datagram{Key: 42, From: 1, To: 2}); s != Busy {
		t.Errorf("lookup: %v", s)
	}
	if _, s := table.Record(start, Datagram{Key: 43}, 1, 2); s != Known {
		t.Errorf("another bucket: %v", s)
	}
}

func TestTableAllocatesNothing(t *testing.T) {
	table := newTable(t, 80)
	key := uint64(1)
	if n := testing.AllocsPerRun(100, func() {
		table.Record(start, Datagram{Key: key}, 1, 2)
		table.Later(start, Datagram{Key: key, From: 1, To: 2})
		key++
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkLater measures Later for the second half of each datagram.
func BenchmarkLater(b *testing.B) {
	table := newTable(b, 1<<16)
	key := uint64(0)
	for b.Loop() {
		key += 0x9e3779b97f4a7c15
		table.Record(start, Datagram{Key: key, To: 185}, 1, 2)
		table.Later(start, Datagram{Key: key, From: 185, To: 200, Last: true})
	}
}

func BenchmarkRecord(b *testing.B) {
	table := newTable(b, 1<<16)
	key := uint64(0)
	for b.Loop() {
		key += 0x9e3779b97f4a7c15
		table.Record(start, Datagram{Key: key}, 1, 2)
	}
}
