// Package owners keeps which pods have had sockets and flows, one after the other, for the next
// process, in a file of stateDir.
//
// In a rolling update the kubelet starts the container of the pod before again until that pod is
// deleted, which the controller does once the pod after it is Ready. A process that gave everything
// back to it would end that pod's readiness, and the update with it. So each process gives nothing
// to pods that precede its own:
//
//	a, b      b has taken over from a, or has started after a had ended: a gets nothing from b
//	a         a has started after b had ended: b is no predecessor any more
//
// The file outlives a process that crashes. Like the flow table it is on a tmpfs, and ends with the
// machine. On a host without pods there is none.
package owners

import (
	"path/filepath"
	"slices"

	"sluice.dev/sluice/internal/statefile"
)

// Name is the file's name in stateDir.
const Name = "owners.json"

// version must change with the meaning of what is in the file.
const version = 1

// most bounds the list. Of these pods all but the last have ended for long.
const most = 17

type content struct {
	statefile.Version
	Owners []string `json:"owners"` // UIDs of pods, the oldest first, the present one last
}

// Load reads what the process before has saved in stateDir; nothing if there is no file.
func Load(stateDir string) ([]string, error) {
	var c content
	if err := statefile.Load(filepath.Join(stateDir, Name), version, &c); err != nil {
		return nil, err
	}
	return c.Owners, nil
}

// Save replaces what is saved in stateDir, in one step.
func Save(stateDir string, list []string) error {
	return statefile.Save(filepath.Join(stateDir, Name), &content{statefile.Version{Version: version}, list})
}

// Remove removes the file, if there is one.
func Remove(stateDir string) error { return statefile.Remove(filepath.Join(stateDir, Name)) }

// Add returns the owners once a pod has followed the last one of a list, that pod last. Those that
// have followed that pod before are none any more. The list is not changed.
func Add(list []string, pod string) []string {
	if i := slices.Index(list, pod); i >= 0 {
		list = list[:i]
	}
	list = append(slices.Clone(list), pod)
	return list[max(0, len(list)-most):]
}
