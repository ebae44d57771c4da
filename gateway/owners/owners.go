// Package owners stores, for the next process, which pods have owned the sockets and flows one
// after another, in a file of stateDir.
//
// In a rolling update, the kubelet restarts the container of the old pod until that pod is deleted,
// which the controller does once the new pod is Ready. If the new process handed everything back to
// the old pod, the new pod would become unready, and the update would stop. So a process hands
// nothing to pods that precede its own:
//
//	a, b      b has taken over from a, or has started after a ended: b hands nothing to a
//	a         a has started after b ended: b is no longer a predecessor
//
// The file survives a crash of the process. Like the flow table it is on a tmpfs, and ends with the
// machine. On a host without pods there is no file.
package owners

import (
	"path/filepath"
	"slices"

	"sluice.dev/sluice/internal/statefile"
)

// Name is the file's name in stateDir.
const Name = "owners.json"

// version must change when the meaning of the file's fields changes.
const version = 1

// most bounds the list. All of these pods but the last have ended long ago.
const most = 17

type content struct {
	statefile.Version
	Owners []string `json:"owners"` // UIDs of pods, the oldest first, the present one last
}

// Load reads the list that the previous process saved in stateDir; it is empty if there is no file.
func Load(stateDir string) ([]string, error) {
	var c content
	if err := statefile.Load(filepath.Join(stateDir, Name), version, &c); err != nil {
		return nil, err
	}
	return c.Owners, nil
}

// Save replaces the list saved in stateDir atomically.
func Save(stateDir string, list []string) error {
	return statefile.Save(filepath.Join(stateDir, Name), &content{statefile.Version{Version: version}, list})
}

// Remove removes the file, if there is one.
func Remove(stateDir string) error { return statefile.Remove(filepath.Join(stateDir, Name)) }

// Add returns the owners after a pod has followed the last one of list; that pod comes last. If the
// list has the pod already, Add removes the pods after it. It does not change list.
func Add(list []string, pod string) []string {
	if i := slices.Index(list, pod); i >= 0 {
		list = list[:i]
	}
	list = append(slices.Clone(list), pod)
	return list[max(0, len(list)-most):]
}
