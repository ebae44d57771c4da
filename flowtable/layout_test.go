package flowtable

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"sluice.dev/sluice/test/bed/pinned"
)

// TestLayoutHasAVersion: headVersion makes the program reject a table of another version, so it
// must change with the layout. The index is rebuilt from the records, so only records and head are
// compared.
func TestLayoutHasAVersion(t *testing.T) {
	var b strings.Builder
	b.WriteString(pinned.Layout(head{}, record4{}, record6{}))
	fmt.Fprintf(&b, "records begin at %d\nmeta: state %d, reset %#x, pending %#x, again %#x, fin %#x, flags %d, "+
		"proto %d, repeat %d, seen %#x\n", headerSize, metaStateShift, uint64(metaReset), uint64(metaPending),
		uint64(metaAgain), uint64(metaFin), metaFlagsShift, metaProtoShift, metaRepeatShift, uint64(metaSeen))
	for s := range State(NumStates) {
		fmt.Fprintf(&b, "state %d %s\n", s, s)
	}
	pinned.Same(t, "testdata/layout.golden", strconv.Itoa(headVersion), b.String())
}
