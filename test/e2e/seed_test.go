//go:build root

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/control/maglev"
	"sluice.dev/sluice/test/bed/topo"
)

// TestSeed: a gateway without a seed draws one, which the next process has after a crash and after
// a hand-over. A Secret that comes, changes and goes is noticed, and nothing that an operator reads
// has its text.
func TestSeed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "seed")
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}, small: true,
		options: handsOver + "maglev: {seedFile: " + file + "}\n"})
	first, condition := l.seed()
	if first == maglev.Fingerprint("") || !strings.Contains(condition, "drawn by this gateway") {
		t.Fatalf("the seed of a gateway that has none: %s", condition)
	}
	for name, end := range map[string]func() error{"a crash": l.gate.Kill, "a hand-over": l.gate.Stop} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := l.gate.Start(l.ctx); err != nil {
			t.Fatal(err)
		}
		if next, condition := l.seed(); next != first {
			t.Errorf("after %s: %s, want fingerprint %s", name, condition, first)
		}
	}
	secrets := []string{"0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"}
	for _, secret := range secrets {
		if err := os.WriteFile(file+".new", []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
		l.eventually(10*time.Second, "the seed of the file is in force", func() bool {
			fingerprint, _ := l.seed()
			return fingerprint == maglev.Fingerprint(secret)
		})
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	l.eventually(10*time.Second, "the last seed stays in force", func() bool {
		fingerprint, condition := l.seed()
		return fingerprint == maglev.Fingerprint(secrets[1]) && strings.Contains(condition, "does not exist any more")
	})
	said := l.gate.Log()
	for _, command := range [][]string{{"status", "-o", "json"}, {"doctor", "-o", "json"}} {
		out, _ := l.gate.Command(context.Background(), command...) // doctor fails for what else it finds
		said += string(out)
	}
	for _, secret := range secrets {
		if strings.Contains(said, secret) {
			t.Errorf("the seed is in the log or in the output of a command:\n%s", said)
		}
	}
	l.handOverNoMore()
}

var fingerprint = regexp.MustCompile(`fingerprint ([0-9a-f]{8})`)

// seed returns the fingerprint of the gateway's seed, and what its status says about it.
func (l *lab) seed() (of, detail string) {
	l.t.Helper()
	v, err := l.gate.Client.Status(l.ctx, false)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, c := range v.Conditions {
		if m := fingerprint.FindStringSubmatch(c.Detail); c.Name == "maglev-seed" && m != nil {
			return m[1], c.Detail
		}
	}
	l.t.Fatalf("no condition about the seed: %+v", v.Conditions)
	return "", ""
}
