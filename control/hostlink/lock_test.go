//go:build root

package hostlink

import (
	"bufio"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestSecondInstance: another process of the namespace is refused while the first
// lives, and adopts the pair when it was killed.
func TestSecondInstance(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		first := exec.Command(os.Args[0])
		first.Env = append(os.Environ(), holdEnv+"=1")
		out := must[io.ReadCloser](t)(first.StdoutPipe())
		must[io.WriteCloser](t)(first.StdinPipe()) // ends with us, and the process with it
		if err := first.Start(); err != nil {
			t.Fatal(err)
		}
		defer first.Process.Kill()
		if line, err := bufio.NewReader(out).ReadString('\n'); line != held {
			t.Fatalf("the first instance says %q, %v", line, err)
		}
		c := testConfig()
		c.MTU = 1400
		if _, err := Ensure(c); !errors.Is(err, ErrInUse) {
			t.Errorf("a second instance: %v", err)
		}
		if mtu := must[netlink.Link](t)(netlink.LinkByName("sluice0")).Attrs().MTU; mtu != 1500 {
			t.Errorf("the second instance changed the MTU to %d", mtu)
		}
		c.Name, c.KernelName, c.Addresses = "other0", "other1", []netip.Prefix{netip.MustParsePrefix("169.254.79.1/30")}
		other := must[*HostLink](t)(Ensure(c))
		if err := other.Remove(); err != nil {
			t.Error(err)
		}
		if err := first.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = first.Wait()
		h := must[*HostLink](t)(Ensure(testConfig()))
		if h.Created {
			t.Error("the pair of the killed process was not adopted")
		}
		if err := h.Remove(); err != nil {
			t.Error(err)
		}
		if h.lock != nil {
			t.Error("Remove keeps the lock")
		}
		must[*HostLink](t)(Ensure(testConfig())).Remove()
	})
}
