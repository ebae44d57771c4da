package affinity

import (
	"fmt"
	"strconv"
	"testing"

	"sluice.dev/sluice/test/bed/pinned"
)

// TestLayoutHasAVersion: headVersion makes the program reject a table of another version, so it
// must change with the layout.
func TestLayoutHasAVersion(t *testing.T) {
	form := pinned.Layout(head{}, set{}) + fmt.Sprintf("sets begin at %d\n", headBytes)
	pinned.Same(t, "testdata/layout.golden", strconv.Itoa(headVersion), form)
}
