package rss

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// TestParse reads answers as the kernel lays them out.
func TestParse(t *testing.T) {
	table := func(entries ...uint32) []byte {
		var b []byte
		for _, e := range entries {
			b = binary.NativeEndian.AppendUint32(b, e)
		}
		return b
	}
	const hashFunction = 3
	for _, c := range []struct {
		name  string
		attrs []*nl.RtAttr
		want  int
	}{
		{"spread over four", []*nl.RtAttr{nl.NewRtAttr(hashFunction, nl.Uint32Attr(9)),
			nl.NewRtAttr(attrIndir, table(0, 3, 1, 2, 0))}, 4},
		{"all on the first", []*nl.RtAttr{nl.NewRtAttr(attrIndir, table(0, 0))}, 1},
		{"no table", []*nl.RtAttr{nl.NewRtAttr(hashFunction, nl.Uint32Attr(9))}, 0},
		{"empty table", []*nl.RtAttr{nl.NewRtAttr(attrIndir, nil)}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b []byte
			for _, a := range c.attrs {
				b = append(b, a.Serialize()...)
			}
			if n, known := parse(b); n != c.want || known != (c.want > 0) {
				t.Errorf("got %d, %v, want %d", n, known, c.want)
			}
		})
	}
}

// TestRequest: the kernel understands the request. The loopback device exists and has no table;
// another error would mean a bad request.
func TestRequest(t *testing.T) {
	if _, err := ask(1); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("asked about lo: %v, want %v", err, unix.EOPNOTSUPP)
	}
	if _, err := ask(1 << 30); !errors.Is(err, unix.ENODEV) {
		t.Errorf("asked about no device: %v, want %v", err, unix.ENODEV)
	}
}
