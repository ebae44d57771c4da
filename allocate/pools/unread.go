package pools

import (
	"maps"
	"slices"
)

// known are the fields that are read, of a specification and of its serviceAllocation.
var known = map[string][]string{
	"spec":              {"addresses", "autoAssign", "avoidBuggyIPs", "serviceAllocation"},
	"serviceAllocation": {"priority", "namespaces", "namespaceSelectors", "serviceSelectors"},
}

// Unread returns the paths of fields in a pool's specification that are not read, in order.
func Unread(spec map[string]any) (list []string) {
	for _, name := range slices.Sorted(maps.Keys(spec)) {
		if !slices.Contains(known["spec"], name) {
			list = append(list, "spec."+name)
		}
	}
	allocation, _ := spec["serviceAllocation"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(allocation)) {
		if !slices.Contains(known["serviceAllocation"], name) {
			list = append(list, "spec.serviceAllocation."+name)
		}
	}
	return list
}
