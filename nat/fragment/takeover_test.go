package fragment

import "testing"

// TestAssume: a table that takes over from another knows its datagrams by the same keys, and uses
// no identification twice.
func TestAssume(t *testing.T) {
	before, next := newTable(t, 1000), newTable(t, 1000)
	next.secret = [2]uint64{9, 9}
	ids := map[uint32]bool{}
	for key := range uint64(100) {
		id, _ := before.Record(start, Datagram{Key: key, V6: true}, 1000, 53)
		ids[id] = true
	}
	before.Record(start-uint64(Life), Datagram{Key: 999}, 1, 2)
	if err := next.Assume(before.Contents(start)); err != nil {
		t.Fatal(err)
	}
	for key := range uint64(100) {
		if f, s := next.lookup(start, key); s != Known || f.Src != 1000 || f.Dst != 53 || !ids[f.ID] {
			t.Fatalf("datagram %d: %+v, %v", key, f, s)
		}
	}
	if id, s := next.Record(start, Datagram{Key: 1000, V6: true}, 1, 2); s != Known || ids[id] {
		t.Errorf("a new datagram got %d, %v", id, s)
	}
	if next.secret != before.secret {
		t.Error("another secret")
	}
	c := before.Contents(start + uint64(Life))
	if len(c.Buckets) != 0 {
		t.Errorf("%d buckets of ended datagrams", len(c.Buckets))
	}
	if err := next.Assume(Contents{Buckets: []Bucket{{At: 1 << 20}}}); err == nil {
		t.Error("a bucket that does not exist")
	}
}
