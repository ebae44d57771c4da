package xdpprog

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"sluice.dev/sluice/test/bed/pinned"
)

// TestLayoutHasAVersion: by mapLayout the program recognises and removes maps that another version
// left pinned, so it must change with the meaning of their bytes. The kernel itself knows only
// sizes.
func TestLayoutHasAVersion(t *testing.T) {
	spec, err := loadSteer()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		if ofPort(name) { // never reused
			continue
		}
		m := spec.Maps[name]
		fmt.Fprintf(&b, "%s %s, key %d bytes, value %d bytes\n", name, m.Type, m.KeySize, m.ValueSize)
		describe(&b, "key", m.Key)
		describe(&b, "value", m.Value)
	}
	pinned.Same(t, "testdata/layout.golden", strconv.Itoa(mapLayout), b.String())
}

// describe writes the fields of a C type and their offsets.
func describe(b *strings.Builder, path string, t btf.Type) {
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Struct:
		for _, m := range t.Members {
			fmt.Fprintf(b, "%6d ", m.Offset.Bytes())
			describe(b, path+"."+m.Name, m.Type)
		}
	case *btf.Array:
		describe(b, fmt.Sprintf("%s[%d]", path, t.Nelems), t.Type)
	case *btf.Enum:
		for _, v := range t.Values {
			fmt.Fprintf(b, "%s %s = %d\n", path, v.Name, v.Value)
		}
	case *btf.Int:
		fmt.Fprintf(b, "%s %s, %d bytes\n", path, t.Name, t.Size)
	default:
		fmt.Fprintf(b, "%s %T\n", path, t)
	}
}
