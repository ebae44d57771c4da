//go:build root

package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/host/nic/ethtool"
)

// TestCheckHost: what doctor fails about interfaces, and what the daemon would refuse, is a problem
// of the configuration on this host; what doctor only warns of is pointed to.
func TestCheckHost(t *testing.T) {
	runtime.LockOSThread() // and never unlocked: the thread ends with the test, and its namespace with it
	space, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { space.Close() })
	nic := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "far0"}
	nic.Name, nic.MTU, nic.NumTxQueues, nic.NumRxQueues = "nic0", 1500, 1, 1
	if err := errors.Join(netlink.LinkAdd(nic), ethtool.OffloadsOff(nic.PeerName)); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file, socket := filepath.Join(dir, "gw.yaml"), filepath.Join(dir, "status.sock")
	text := "apiVersion: sluice.dev/v1alpha1\nkind: GatewayConfiguration\ninterfaces: [{name: nic0}]\nstateDir: " +
		dir +
		"\nmanifests: {directory: " + dir + "}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var refusal error
	check := func() (int, string) {
		var out bytes.Buffer
		app := App{Out: &out, Err: &out, StartError: func(*config.Configuration) error { return refusal }}
		return app.Main(t.Context(), []string{"config", "check", "--host", file, "--socket", socket}), out.String()
	}
	// It is down.
	if code, out := check(); code != exitOK ||
		!strings.HasPrefix(out, file+": ok; 1 warning about its interfaces, which `sluice doctor --config ") {
		t.Errorf("what may be wrong: exit %d, %q", code, out)
	}
	refusal = errors.New("workers is 2, but an interface has only 1 queues")
	if code, out := check(); code != exitFailure || !strings.HasPrefix(out, "sluice: "+file+
		": interfaces: start: workers is 2") {
		t.Errorf("what the daemon refuses: exit %d, %q", code, out)
	}
	if err := netlink.LinkSetMTU(nic, 65400); err != nil {
		t.Fatal(err)
	}
	refusal = errors.New("interface nic0 has MTU 65400")
	if code, out := check(); code != exitFailure || !strings.HasPrefix(out, "sluice: "+file+": nic0: mtu: 65400") ||
		strings.Contains(out, "start") {
		t.Errorf("what doctor fails, once: exit %d, %q", code, out)
	}
}
