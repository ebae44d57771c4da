package sandbox

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const unitFile = "../../deploy/systemd/sluice.service"

// beforeFilter are the calls that confine the daemon, which its own filter refuses afterwards.
var beforeFilter = []string{
	"capset", "seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self",
}

// setting returns the words of a setting of the unit, of all its lines.
func setting(t *testing.T, name string) (words []string) {
	t.Helper()
	text, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+"="); ok {
			words = append(words, strings.Fields(value)...)
		}
	}
	if len(words) == 0 {
		t.Fatalf("the unit has no %s", name)
	}
	return words
}

// callsOf returns the system calls of a word of SystemCallFilter, a call or a set (@).
func callsOf(t *testing.T, word string) (calls []string) {
	t.Helper()
	if !strings.HasPrefix(word, "@") {
		return []string{word}
	}
	program, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Fatal("systemd-analyze is not installed: run .ci/test-tools, as make test does")
	}
	out, err := exec.Command(program, "syscall-filter", "--no-pager", word).Output()
	if err != nil {
		t.Fatalf("systemd-analyze syscall-filter %s: %v", word, err)
	}
	for line := range strings.Lines(string(out)) {
		if name := strings.TrimSpace(line); name != "" && name != word && !strings.HasPrefix(name, "#") {
			calls = append(calls, callsOf(t, name)...)
		}
	}
	return calls
}

// TestUnitAllowsCalls: the systemd unit forbids no system call that the daemon's own filter allows,
// and none that sets the filter up.
func TestUnitAllowsCalls(t *testing.T) {
	unit := map[string]bool{}
	for _, word := range setting(t, "SystemCallFilter") {
		for _, call := range callsOf(t, word) {
			unit[call] = true
		}
	}
	for name := range names() {
		if _, known := architectures["amd64"].SyscallNames[name]; known && !unit[name] {
			t.Errorf("the unit refuses %s, which the daemon may call", name)
		}
	}
	for _, name := range beforeFilter {
		if !unit[name] {
			t.Errorf("the unit refuses %s, by which the daemon confines itself", name)
		}
	}
}

// TestUnitLeavesCapabilities: the unit grants exactly the capabilities that the daemon keeps.
func TestUnitLeavesCapabilities(t *testing.T) {
	var want []string
	for _, c := range Kept {
		want = append(want, "CAP_"+c.Name)
	}
	if got := setting(t, "CapabilityBoundingSet"); !slices.Equal(got, want) {
		t.Errorf("capabilities %v, want %v", got, want)
	}
}
