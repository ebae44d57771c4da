//go:build root

package topo

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// ownMounts is set for the test's process that has mounts of its own.
const ownMounts = "TOPO_TEST_OWN_MOUNTS"

// TestNamesAreRemovedAfterIPNetns: where /run/netns is no mount, a named namespace can be removed
// after the first `ip netns add` of somebody else. The test runs again as a process with mounts,
// and a /run, of its own.
func TestNamesAreRemovedAfterIPNetns(t *testing.T) {
	if os.Getenv(ownMounts) == "" {
		c := exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "private", "sh", "-ec",
			`mount -t tmpfs -o mode=0755 tmpfs /run && exec "$0" -test.run='^`+t.Name()+`$'`, os.Args[0])
		c.Env = append(os.Environ(), ownMounts+"=1")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	mine, others := Prefix+"mine", Prefix+"others"
	ns, err := newNamespace(mine)
	if err != nil {
		t.Fatal(err)
	}
	for _, arg := range []string{"add", "delete"} {
		if out, err := exec.CommandContext(t.Context(), "ip", "netns", arg, others).CombinedOutput(); err != nil {
			t.Fatalf("ip netns %s: %v: %s", arg, err, out)
		}
	}
	if err := ns.close(); err != nil {
		t.Errorf("remove the namespace: %v", err)
	}
	if _, err := os.Stat(filepath.Join(netnsDir, mine)); !os.IsNotExist(err) {
		t.Errorf("its name is still there: %v", err)
	}
}
