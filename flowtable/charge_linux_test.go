package flowtable

import (
	"path/filepath"
	"testing"

	"sluice.dev/sluice/nat/header"
)

// TestFileCharges: charges end with the process. The next process starts with none, whether it
// recovers the table or moves the flows to a table of another size. A flow that it adopts counts
// once, until it ends.
func TestFileCharges(t *testing.T) {
	sized := func(n uint32) Config {
		return Config{IPv4Flows: n, IPv6Flows: n, Timeouts: DefaultTimeouts()}
	}
	from := sized(1000)
	for _, k := range []struct {
		name string
		to   Config
	}{
		{"the same size", from},
		{"moved up", sized(2000)},
		{"moved down", sized(500)},
	} {
		t.Run(k.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "flows")
			f := mustOpen(t, path, from)
			h := mustEnter(t, f.Table)
			four, six := newFlow(header.ProtoTCP, false, 1), newFlow(header.ProtoTCP, true, 2)
			h.standing(t, four)
			h.standing(t, six)
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			f = mustOpen(t, path, k.to)
			h = mustEnter(t, f.Table)
			for _, n := range []*NewFlow{&four, &six} {
				if got := f.Table.usesOf(n); got != [2]uint32{} {
					t.Errorf("source and service have %d of a dead process", got)
				}
			}
			for i, n := range []*NewFlow{&four, &six} {
				r, _ := h.Lookup(h.Hash(&n.Client), &n.Client, bootTime)
				if r == 0 || !h.Adopt(r, n.Service, n.BackendRef) {
					t.Fatalf("flow %d was not adopted", i)
				}
				h.Charge(r, Rates{}, bootTime)
				h.Bind(r, 7, n.Service, n.BackendRef, 0, 0) // as the worker does for the first packet
				h.Charge(r, Rates{}, bootTime)
			}
			if four.Service != six.Service {
				t.Fatal("the flows must share a service")
			}
			for i, n := range []*NewFlow{&four, &six} {
				if got, want := f.Table.usesOf(n), [2]uint32{1, uint32(2 - i)}; got != want {
					t.Errorf("source and service have %d, want %d", got, want)
				}
				r, _ := h.Lookup(h.Hash(&n.Client), &n.Client, bootTime)
				h.Delete(r)
				if got, want := f.Table.usesOf(n), [2]uint32{0, uint32(1 - i)}; got != want {
					t.Errorf("source and service have %d after the end, want %d", got, want)
				}
			}
			validate(t, f.Table)
			if err := f.Remove(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func mustEnter(t *testing.T, tb *Table) *Handle {
	t.Helper()
	h, err := tb.Register()
	if err != nil {
		t.Fatal(err)
	}
	h.Enter(bootTime)
	return h
}
