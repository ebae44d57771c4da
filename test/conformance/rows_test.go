package conformance

import (
	"slices"
	"testing"
)

// TestEveryRowHasACase: no row of the document is without a case, and no case claims a
// row that is not there.
func TestEveryRowHasACase(t *testing.T) {
	known, err := rows(document)
	if err != nil {
		t.Fatal(err)
	}
	known = append(known, prose...)
	shown := map[string]bool{}
	names := map[string]bool{}
	for _, c := range all() {
		for _, row := range c.Rows {
			shown[row] = true
			if !slices.Contains(known, row) {
				t.Errorf("case %s shows %q, which is no row", c.Name, row)
			}
		}
		if key := c.ID(); names[key] {
			t.Errorf("two cases are named %s", key)
		} else {
			names[key] = true
		}
	}
	for _, row := range known {
		if _, excused := elsewhere[row]; shown[row] == excused {
			t.Errorf("%q: shown by a case: %v, excused: %v", row, shown[row], excused)
		}
	}
	if len(known) < 80 {
		t.Errorf("only %d rows", len(known))
	}
}
