package guest

import (
	"bytes"
	"testing"

	"sluice.dev/sluice/serve/status"
)

func TestRanges(t *testing.T) {
	for want, numbers := range map[string][]int{
		"": nil, "7": {7}, "1-3": {1, 2, 3}, "1-3, 7": {1, 2, 3, 7}, "1, 3, 5-6": {1, 3, 5, 6},
	} {
		if got := ranges(numbers); got != want {
			t.Errorf("%v: %q, want %q", numbers, got, want)
		}
	}
}

// TestDatagrams: no datagram is the beginning of another, so that one that was cut, or answered for
// another, is seen.
func TestDatagrams(t *testing.T) {
	for size := 18; size < etherMTU; size++ {
		a, b := datagram(size), datagram(size+1)
		if len(a) != size || bytes.HasPrefix(b, a) || bytes.Equal(complement(a), a) ||
			!bytes.Equal(complement(complement(a)), a) {
			t.Fatalf("%d bytes: %x and %x", size, a, b)
		}
	}
}

func TestModeOf(t *testing.T) {
	zc, cp := status.QueueView{Bound: true, ZeroCopy: true, Reason: "sockets"},
		status.QueueView{Bound: true, Reason: "sockets"}
	for _, c := range []struct {
		name string
		i    status.InterfaceView
		want Mode
	}{
		{"zero-copy", status.InterfaceView{Mode: "native", Queues: []status.QueueView{zc, zc}}, ZeroCopy},
		{"copy", status.InterfaceView{Mode: "native", Queues: []status.QueueView{cp}}, Copy},
		{"generic", status.InterfaceView{Mode: "generic", Queues: []status.QueueView{cp, cp}}, Generic},
		{"queues differ", status.InterfaceView{Mode: "native", Queues: []status.QueueView{zc, cp}}, ""},
		{"not bound", status.InterfaceView{Mode: "native", Queues: []status.QueueView{{}}}, ""},
		{"the last is not bound", status.InterfaceView{Mode: "native", Queues: []status.QueueView{cp, {}}}, ""},
		{"no queue", status.InterfaceView{Mode: "native"}, ""},
	} {
		got, _, err := modeOf(&c.i)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}

func TestRepeated(t *testing.T) {
	for reason, want := range map[string]bool{
		"the driver supports it; the driver supports it":  true,
		"the driver supports it; copy mode was requested": false,
		"the driver supports it":                          false,
	} {
		if got := repeated(reason); got != want {
			t.Errorf("%q: %v", reason, got)
		}
	}
}
