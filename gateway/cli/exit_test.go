package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/gateway/simulate"
	"sluice.dev/sluice/internal/usage"
	"sluice.dev/sluice/serve/status/statustest"
)

// The exit codes (usage.ExitCodes).
const (
	exitOK       = usage.OK
	exitFailure  = usage.Failure
	exitUsage    = usage.Wrong
	exitFindings = usage.Findings
)

// TestExitCodesOfCommands runs the commands of sluice for which an exit code has a meaning of its
// own.
func TestExitCodesOfCommands(t *testing.T) {
	wrong := filepath.Join(t.TempDir(), "wrong.yaml")
	if err := os.WriteFile(wrong, []byte("a: b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log := t.TempDir()
	if err := os.WriteFile(filepath.Join(log, "flows-1.jsonl"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	g := statustest.New()
	g.StatusView.Ready, g.StatusView.Config.Error = false, "line 7"
	socket := daemon(t, g)
	commands := map[string][]string{
		"sluice run":                       {"run", "--config", wrong},
		"sluice config check":              {"config", "check", wrong},
		"sluice doctor, sluice node check": {"node", "check", "--vni", "7"},
		"sluice status --wait":             {"status", "--wait", "--timeout", "10ms", "--socket", socket},
		"sluice probe":                     {"probe", "ready", "--socket", socket},
		"sluice who":                       {"who", "10.0.0.1:1", "--files", log},
		"sluice simulate":                  {"simulate", "--capture", today(t), "--manifests", simulated + "/new"},
	}
	// Tested where these programs are.
	others := []string{"", "sluice-announcer status", "kubectl sluice", "kubectl sluice who"}
	for _, e := range usage.ExitCodes {
		args, ok := commands[e.Of]
		if !ok {
			if !slices.Contains(others, e.Of) {
				t.Errorf("no command line for %s", e.Of)
			}
			continue
		}
		app := App{Out: new(strings.Builder), Err: new(strings.Builder), Node: NodeCommands{Check: findings},
			Run: noDaemon, Simulate: simulate.Run, StartError: func(*config.Configuration) error { return nil }}
		if got := app.Main(t.Context(), args); got != e.Code {
			t.Errorf("%q: exit %d, want %d: %v", args, got, e.Code, app.Err)
		}
	}
}

// TestExitCodesTopic: help and docs/operations.md have the same list.
func TestExitCodesTopic(t *testing.T) {
	code, help, errs := sluice(t, "help", "exit-codes")
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil || code != exitOK {
		t.Fatalf("exit %d, %s, %v", code, errs, err)
	}
	table := "| code | of | meaning |\n| --- | --- | --- |\n"
	for _, e := range usage.ExitCodes {
		of := "all commands"
		if e.Of != "" {
			of = "`" + strings.ReplaceAll(e.Of, ", ", "`, `") + "`"
		}
		table += fmt.Sprintf("| %d | %s | %s |\n", e.Code, of, e.Meaning)
		if !strings.Contains(help, e.Meaning) {
			t.Errorf("help does not have %q:\n%s", e.Meaning, help)
		}
	}
	if !strings.Contains(string(page), table) {
		t.Errorf("docs/operations.md does not have this table:\n%s", table)
	}
}
