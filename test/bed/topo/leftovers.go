package topo

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const netnsDir = "/run/netns"

// Leftovers finds the network's remains on the machine: names of namespaces, and processes. After
// Close it must be empty.
func (n *Net) Leftovers() (out []string, err error) {
	entries, err := os.ReadDir(netnsDir)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), Prefix+n.ID) {
			out = append(out, "namespace "+e.Name())
		}
	}
	for _, p := range processesWith(environmentTag + "=" + n.ID) {
		out = append(out, fmt.Sprintf("process %d", p))
	}
	return out, nil
}

// processesWith finds processes by what their environment was when they started.
// Those that end while we look, and those we may not look at, are not listed.
func processesWith(tag string) []int {
	files, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is well-formed
	var pids []int
	for _, f := range files {
		env, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(append([]byte{0}, env...), append([]byte{0}, tag...)) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(f, "/proc/%d/environ", &pid); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}
