//go:build root

package doctor

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
)

// command matches the kinds of commands in this package's advice.
var command = regexp.MustCompile(`ip link set [^:;"]*? (?:up|mtu|xdp)|ethtool -[A-Z]|sysctl |mount -t \w+|nsenter|kubectl`)

// remedies are the kinds of commands in the advice: the facts that lead to one, which the test
// runs, or why it cannot.
var remedies = map[string]struct {
	change func(*Facts)
	not    string
}{
	"ip link up":  {change: func(f *Facts) { f.Interfaces[0].Up = false }},
	"ip link mtu": {change: func(f *Facts) { f.Interfaces[0].Driver, f.Interfaces[0].MTU = "igb", 3047 }},
	"ip link xdp": {change: func(f *Facts) { f.Interfaces[0].Program = "other" }},
	"sysctl": {change: func(f *Facts) {
		f.Sysctls["net.ipv4.ip_forward"], f.Sysctls["net.ipv6.conf.all.forwarding"] = "0", "0"
		f.Sysctls["net.ipv4.conf.eth0.rp_filter"] = "1"
		f.Host.Ephemeral = config.PortRange{First: 20000, Last: 60999}
	}},
	"mount -t bpf":   {change: func(f *Facts) { f.BPFFS, f.Caps = false, f.Caps&^(1<<unix.CAP_SYS_ADMIN) }},
	"mount -t tmpfs": {not: "TestStateRemedy runs it"},
	"ethtool -K":     {not: "features such as LRO need a NIC"},
	"ethtool -L":     {not: "combined queues need a NIC"},
	"ethtool -X":     {not: "an RSS table needs a NIC"},
	"ethtool -N":     {not: "a flow hash needs a NIC"},
	"ethtool -G":     {not: "rings need a NIC"},
	"nsenter":        {not: "needs a daemon in another network namespace"},
	"kubectl":        {not: "needs an API server"},
}

// kindOf is a command's key in remedies.
func kindOf(text string) string {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "ip link") {
		return "ip link " + text[strings.LastIndex(text, " ")+1:]
	}
	return text
}

// TestEveryRemedyIsKnown: each command in the package's source is of a kind that remedies has.
func TestEveryRemedyIsKnown(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		joined := regexp.MustCompile(`"\s*\+\s*(?:d\.Name|name)\s*\+\s*"`).ReplaceAllString(string(text), "%s")
		for _, match := range command.FindAllString(regexp.MustCompile(`"\s*\+\s*"`).ReplaceAllString(joined, ""), -1) {
			kind := kindOf(match)
			if found[kind] = true; remedies[kind].change == nil && remedies[kind].not == "" {
				t.Errorf("%s: advice %q is of a kind that no test runs: add it to remedies", file, match)
			}
		}
	}
	if len(found) < 8 {
		t.Errorf("only %v found in the source", found)
	}
}

// TestRemediesRun runs the commands that Examine prints, on a veth in namespaces of the test.
func TestRemediesRun(t *testing.T) {
	runtime.LockOSThread() // and never unlocked: the thread ends with the test, and its namespaces too
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS | unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	shell := func(text string) {
		t.Helper()
		if out, err := exec.Command("sh", "-ec", text).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", text, err, out)
		}
	}
	shell("mount --make-rprivate / && mount -t sysfs sysfs /sys && ip link add eth0 type veth peer name eth1")
	whole := regexp.MustCompile(`(?:ip link set|sysctl|mount -t) [^;)]*`)
	for kind, r := range remedies {
		if r.change == nil {
			continue
		}
		f := healthy()
		f.Config.BPFFS = t.TempDir()
		r.change(f)
		n := 0
		for _, finding := range Examine(f) {
			if text := whole.FindString(finding.Do); text != "" {
				n++
				shell(text)
			}
		}
		unix.Unmount(f.Config.BPFFS, unix.MNT_DETACH)
		if n == 0 {
			t.Errorf("%s: no command was printed", kind)
		}
	}
}
