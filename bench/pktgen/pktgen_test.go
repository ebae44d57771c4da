package pktgen

import (
	"os/exec"
	"strings"
	"testing"
)

func run(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	out, err := exec.Command("bash", append([]string{"pktgen.sh"}, arguments...)...).CombinedOutput()
	return string(out), err
}

func TestSyntax(t *testing.T) {
	if out, err := exec.Command("bash", "-n", "pktgen.sh").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestPrint: the commands that would be written to the kernel, for each load.
func TestPrint(t *testing.T) {
	for _, c := range []struct {
		name      string
		arguments []string
		want      []string
		never     []string
	}{
		{"udp", []string{"--load", "udp"},
			[]string{"eth9@0: pkt_size 60", "eth9@0: src_max 10.81.0.21", "eth9@0: udp_src_max 60000",
				"eth9@0: dst_max 10.83.0.1", "eth9@0: flag IPSRC_RND"},
			[]string{"imix", "ratep", "vlan", "eth9@1"}},
		{"few flows", []string{"--flows", "1000"},
			[]string{"src_max 10.81.0.1", "udp_src_min 10000", "udp_src_max 11000"}, []string{"IPSRC_RND"}},
		{"imix", []string{"--load", "imix"}, []string{"imix_weights 60,7 590,4 1514,1"}, nil},
		{"udp6", []string{"--load", "udp6"}, []string{"pkt_size 74", "dst6 fd00:83::1", "50000 flows instead"},
			[]string{" dst_min", "IPSRC"}},
		{"two threads", []string{"--threads", "2", "--rate", "1000000"},
			[]string{"kpktgend_1: add_device eth9@1", "eth9@0: ratep 500000", "eth9@1: ratep 500000",
				"eth9@1: queue_map_min 1"}, nil},
		{"vlan, vip", []string{"--vlan", "7", "--vip", "192.0.2.1"}, []string{"vlan_id 7", "dst_min 192.0.2.1"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := run(t, append([]string{"--device", "eth9", "--mac", "02:00:00:00:00:01", "--print"},
				c.arguments...)...)
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for _, w := range append(
				c.want, "dst_mac 02:00:00:00:00:01", "flag UDPCSUM", "clone_skb 0", "pgctrl: start",
			) {
				if !strings.Contains(out, w) {
					t.Errorf("%q is missing in\n%s", w, out)
				}
			}
			for _, n := range c.never {
				if strings.Contains(out, n) {
					t.Errorf("%q is in\n%s", n, out)
				}
			}
		})
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name, want string
		arguments  []string
	}{
		{"nothing", "usage", nil},
		{"no MAC", "usage", []string{"--device", "eth9"}},
		{"unknown option", "usage", []string{"--device", "eth9", "--mac", "m", "--fast", "1"}},
		{"unknown load", "usage", []string{"--device", "eth9", "--mac", "m", "--load", "tcp", "--print"}},
		{"too many flows", "253 at most", []string{"--device", "eth9", "--mac", "m", "--flows", "100000000",
			"--print"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if out, err := run(t, c.arguments...); err == nil || !strings.Contains(out, c.want) {
				t.Errorf("got %v, %s", err, out)
			}
		})
	}
}
