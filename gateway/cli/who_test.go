package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestWho: the answers without a gateway, and their exit codes.
func TestWho(t *testing.T) {
	dir, empty := t.TempDir(), t.TempDir()
	const line = `{"time":"2026-11-29T12:00:00.000000Z","event":"begin","protocol":"TCP",` +
		`"client":"198.51.100.7:40000","vip":"203.0.113.9:80","snat":"10.0.0.1:21360","backend":"10.0.1.12:8080",` +
		`"service":"shop/web"}` + "\n"
	end := strings.Replace(strings.Replace(line, "12:00:00", "12:05:00", 1), `"begin"`, `"end","why":"timeout"`, 1)
	if err := os.WriteFile(filepath.Join(dir, "flows-1.jsonl"), []byte(line+end), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args, out, errs string
		code            int
	}{
		{"10.0.0.1:21360 --at 2026-11-29T12:01:00Z --files " + dir, "198.51.100.7:40000", "", 0},
		{"10.0.0.1:21360 --to 10.0.1.12:8080 --protocol tcp --at 2026-11-29T12:01:00Z --files " + dir, "shop/web",
			"", 0},
		{"10.0.0.1:21360 --at 2026-11-29T12:01:00Z -o json --files " + dir, `"alive": false`, "", 0},
		{"10.0.0.1:21360 --at 2026-11-29T12:06:00Z --files " + dir, "",
			"before, 198.51.100.7:40000 had it until 2026-11-29T12:05:00", 3},
		{"10.0.0.1:21360 --at 2026-11-29T11:06:00Z --files " + dir, "", "the flow log begins later", 3},
		{"10.0.0.1:21360 --to 10.0.1.13:8080 --at 2026-11-29T12:01:00Z --files " + dir, "",
			"no flow had the source", 3},
		{"10.0.0.1:21360 --files " + empty, "", "has no files of a flow log", 1},
		{"10.0.0.1 --files " + dir, "", "no address and port", 2},
		{"10.0.0.1:1 --to web --files " + dir, "", "--to", 2},
		{"10.0.0.1:1 --at noon --files " + dir, "", "is no time", 2},
	} {
		code, out, errs := sluice(t, append([]string{"who"}, strings.Fields(tt.args)...)...)
		if code != tt.code || !strings.Contains(out, tt.out) || !strings.Contains(errs, tt.errs) {
			t.Errorf("%s: %d\n%s%s", tt.args, code, out, errs)
		}
	}
}

func TestParseTime(t *testing.T) {
	zone := time.FixedZone("X", 2*3600)
	now := time.Date(2026, 11, 29, 15, 0, 0, 0, zone)
	for text, want := range map[string]string{
		"2026-11-29T12:03:00Z": "2026-11-29T12:03:00Z", "2026-11-29T12:03:00": "2026-11-29T10:03:00Z",
		"2026-11-29 12:03": "2026-11-29T10:03:00Z", "12:03": "2026-11-29T10:03:00Z", "12:03:09": "2026-11-29T10:03:09Z",
	} {
		if got, err := parseTime(text, now); err != nil || got.UTC().Format(time.RFC3339) != want {
			t.Errorf("%s: %v, %v, want %s", text, got, err, want)
		}
	}
}
