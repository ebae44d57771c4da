package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const unitFile = "systemd/sluice.service"

// mostExposed is what systemd-analyze security may rate the unit at most, in tenths: 27 is what
// version 252 gives. What is left are the user, sockets and capabilities that a gateway needs.
const mostExposed = "27"

// analyze runs systemd-analyze, without which the unit cannot be judged: it needs no systemd that
// runs.
func analyze(t *testing.T, args ...string) (string, error) {
	t.Helper()
	program, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Fatal("systemd-analyze is not installed: run .ci/test-tools, as make test does")
	}
	out, err := exec.Command(program, args...).CombinedOutput()
	return string(out), err
}

// TestUnitIsConfined: systemd rates the unit as docs/operations.md says.
func TestUnitIsConfined(t *testing.T) {
	out, err := analyze(t, "security", "--offline=true", "--no-pager", "--threshold="+mostExposed, unitFile)
	if err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	const head = "Overall exposure level for sluice.service: "
	_, after, found := strings.Cut(out, head)
	if score, _, _ := strings.Cut(after, " "); !found || score == "" {
		t.Errorf("no score:\n%s", out)
	} else {
		t.Logf("exposure %s of 10", score)
	}
}

// TestUnitIsValid: systemd knows every setting of the unit and understands its value.
func TestUnitIsValid(t *testing.T) {
	text, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable() // a program that is there
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "sluice.service")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(text), "/usr/local/bin/sluice", self)),
		0o644); err != nil {
		t.Fatal(err)
	}
	// Of a setting or value that it does not know it warns, and goes on.
	if out, err := analyze(t, "verify", "--man=false", "--recursive-errors=no", path); err != nil ||
		strings.Contains(out, path) {
		t.Errorf("%v:\n%s", err, out)
	}
}
