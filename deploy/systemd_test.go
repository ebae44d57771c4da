package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"sluice.dev/sluice/announce/view"
	"sluice.dev/sluice/control/endpointhealth"
	"sluice.dev/sluice/control/probe"
)

// units are the unit files, and the limit of their rating by systemd-analyze security, in tenths:
// the rating of version 252. The rest of the exposure is the user, sockets and capabilities that
// the programs need.
var units = map[string]string{"sluice": "27", "sluice-announcer": "19"}

func unitFile(name string) string { return "systemd/" + name + ".service" }

// analyze runs systemd-analyze, which does not need a running systemd. The test fails if it is not
// installed.
func analyze(t *testing.T, args ...string) (string, error) {
	t.Helper()
	program, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Fatal("systemd-analyze is not installed: run .ci/test-tools, as make test does")
	}
	out, err := exec.Command(program, args...).CombinedOutput()
	return string(out), err
}

// TestUnitIsConfined: systemd rates each unit as docs/operations.md states.
func TestUnitIsConfined(t *testing.T) {
	for name, most := range units {
		out, err := analyze(t, "security", "--offline=true", "--no-pager", "--threshold="+most, unitFile(name))
		if err != nil {
			t.Errorf("%s: %v:\n%s", name, err, out)
		}
		_, after, found := strings.Cut(out, "Overall exposure level for "+name+".service: ")
		if score, _, _ := strings.Cut(after, " "); !found || score == "" {
			t.Errorf("%s: no score:\n%s", name, out)
		} else {
			t.Logf("%s: exposure %s of 10", name, score)
		}
	}
}

// TestUnitIsValid: systemd knows every setting of each unit and accepts its value.
func TestUnitIsValid(t *testing.T) {
	self, err := os.Executable() // an existing program
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(unitFile("*"))
	if err != nil || len(files) != len(units) {
		t.Fatalf("units %q (%v), want %d", files, err, len(units))
	}
	for name := range units {
		text, err := os.ReadFile(unitFile(name))
		if err != nil {
			t.Fatal(err)
		}
		program := regexp.MustCompile(`/usr/local/bin/` + name + `\b`)
		path := filepath.Join(t.TempDir(), name+".service")
		if err := os.WriteFile(path, program.ReplaceAll(text, []byte(self)), 0o644); err != nil {
			t.Fatal(err)
		}
		// systemd only warns about an unknown setting or value.
		if out, err := analyze(t, "verify", "--man=false", "--recursive-errors=no", path); err != nil ||
			strings.Contains(out, path) {
			t.Errorf("%s: %v:\n%s", name, err, out)
		}
	}
}

// TestAnnouncerUnit: the unit starts the announcer as docs/reach.md does, with the rights of the
// chart's pod and no more memory.
func TestAnnouncerUnit(t *testing.T) {
	text, err := os.ReadFile(unitFile("sluice-announcer"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"ExecStart=/usr/local/bin/sluice-announcer --config /etc/sluice/announce.yaml",
		"CapabilityBoundingSet=CAP_NET_RAW", "MemoryMax=512M", "Environment=GOMEMLIMIT=409MiB",
		"RuntimeDirectory=" + filepath.Base(filepath.Dir(view.DefaultSocket))} {
		if !strings.Contains(string(text), "\n"+line+"\n") {
			t.Errorf("there is no line %s", line)
		}
	}
}

// TestUnitsHaveDescriptors: a distribution's default, which may be 1024, limits neither the checks
// of the gateway, which take a quarter of its descriptors at most, nor the announcer's sessions.
func TestUnitsHaveDescriptors(t *testing.T) {
	for name, least := range map[string]int{"sluice": 4 * endpointhealth.MostUnderWay * probe.MostDescriptors,
		"sluice-announcer": 1 << 14} {
		text, err := os.ReadFile(unitFile(name))
		if err != nil {
			t.Fatal(err)
		}
		_, value, _ := strings.Cut(string(text), "\nLimitNOFILE=")
		value, _, _ = strings.Cut(value, "\n")
		if n, err := strconv.Atoi(value); err != nil || n < least {
			t.Errorf("%s: LimitNOFILE=%s, want %d at least", name, value, least)
		}
	}
}
