package flowtable

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/test/bed/pinned"
)

// TestLayoutHasAVersion: headVersion makes the program reject a table of another version, so it
// must change with the layout. The index is rebuilt from the records, so only records and head are
// compared.
func TestLayoutHasAVersion(t *testing.T) {
	var b strings.Builder
	b.WriteString(pinned.Layout(head{}, record4{}, record6{}))
	fmt.Fprintf(&b, "records begin at %d\nmeta: state %d, reset %#x, pending %#x, again %#x, fin %#x, flags %d, "+
		"proto %d, repeat %d, seen %#x\n", headerSize, conn.MetaStateShift, uint64(conn.MetaReset),
		uint64(conn.MetaPending),
		uint64(conn.MetaAgain), uint64(conn.MetaFin), conn.MetaFlagsShift, conn.MetaProtoShift,
		conn.MetaRepeatShift, uint64(conn.MetaSeen))
	for s := range State(NumStates) {
		fmt.Fprintf(&b, "state %d %s\n", s, s)
	}
	pinned.Same(t, "testdata/layout.golden", strconv.Itoa(headVersion), b.String())
}
