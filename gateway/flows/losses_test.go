package flows

import (
	"strings"
	"testing"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/flowtable"
)

// TestLosses: what was lost is said with its number and makes an Event about the Node; a size that
// stays is said with what to do.
func TestLosses(t *testing.T) {
	for _, k := range []struct {
		name  string
		r     flowtable.Recovery
		want  []string // in the warning; none: no warning
		event bool
	}{
		{"new", flowtable.Recovery{Fresh: true, Why: "new file"}, nil, false},
		{"taken over", flowtable.Recovery{Recovered: 5, Torn: 1}, nil, false},
		{"moved", flowtable.Recovery{Recovered: 5, Moved: true}, nil, false},
		{"kept", flowtable.Recovery{Recovered: 5, Kept: true, Why: "no room", FoundFlows: [2]uint32{7, 8}},
			[]string{"7 IPv4", "8 IPv6", "no room", "flows.resize: force"}, false},
		{"lost", flowtable.Recovery{Recovered: 5, Moved: true, Lost: 3}, []string{"3 flows", "5 were moved"}, true},
		{"unread", flowtable.Recovery{Fresh: true, Unread: true, Why: "version 9"}, []string{"version 9", "lost"},
			true},
	} {
		t.Run(k.name, func(t *testing.T) {
			got := Losses(&k.r)
			if (got == "") != (k.want == nil) {
				t.Errorf("warns %q", got)
			}
			for _, want := range k.want {
				if !strings.Contains(got, want) {
					t.Errorf("no %q in %q", want, got)
				}
			}
			list := LossProblems(&k.r, "n1")
			if (len(list) == 1) != k.event {
				t.Fatalf("problems: %v, want one: %v", list, k.event)
			}
			if !k.event {
				return
			}
			p := list[0]
			if p.Object != (objects.ObjectID{Kind: "Node", Name: "n1"}) || p.Message != got ||
				p.Why() != objects.ReasonFlowsLost {
				t.Errorf("%+v", p)
			}
		})
	}
}
