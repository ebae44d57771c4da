package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/certs"
)

// TestCertificates: of both sections with certificates the status has a condition from 14 days
// before the end of a certificate, of the last authority, and for files that cannot be used; new
// files end it without a restart.
func TestCertificates(t *testing.T) {
	const day = 24 * time.Hour
	authority := func(left time.Duration) *certs.Authority {
		a, err := certs.NewFor(left)
		must(t, err)
		return a
	}
	soon, late := authority(10*day), authority(300*day)
	for name, c := range map[string]struct {
		left    time.Duration
		trusted []*certs.Authority
		key     string // content of the key's file; empty: the right one
		level   string // empty: no condition
		says    string
		group   bool // concerns the group only
	}{
		"far":  {left: 15 * day, trusted: []*certs.Authority{late}},
		"soon": {left: 13 * day, trusted: []*certs.Authority{late}, level: "warn", says: "ends at"},
		"ended": {left: -time.Minute, trusted: []*certs.Authority{late}, level: "fail",
			says: "has ended at"},
		"authority soon": {left: 90 * day, trusted: []*certs.Authority{soon}, level: "warn",
			says: "ends at", group: true},
		"one authority soon": {left: 90 * day, trusted: []*certs.Authority{soon, late}},
		"key of another": {left: 90 * day, trusted: []*certs.Authority{late}, key: "none", level: "warn",
			says: "the certificate from before is used"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := func(name string) string { return filepath.Join(dir, name) }
			write := func(left time.Duration, trusted ...*certs.Authority) {
				t.Helper()
				leaf := certs.Template("gw-a")
				leaf.NotBefore, leaf.NotAfter = time.Now().Add(-2*day), time.Now().Add(left)
				must(t, late.WriteSigned(dir, leaf, trusted...))
			}
			cfg := &config.Configuration{NodeName: "gw-a"}
			cfg.Metrics.TLS.CertFile, cfg.Metrics.TLS.KeyFile = file(certs.CertFile), file(certs.KeyFile)
			cfg.Group.Members = []config.GroupMember{{Name: "gw-a"}}
			cfg.Group.TLS = config.GroupTLS{CertFile: file(certs.CertFile), KeyFile: file(certs.KeyFile),
				CAFile: file(certs.CAFile)}
			write(300*day, late)
			var s certificates
			log := slog.New(slog.DiscardHandler)
			s.watch(cfg, log)
			if list := s.conditions(time.Now()); len(list) > 0 {
				t.Fatalf("of good files: %v", list)
			}
			write(c.left, c.trusted...)
			if c.key != "" {
				must(t, os.WriteFile(file(certs.KeyFile), []byte(c.key), 0o600))
			}
			s.look(log)
			want := 2
			if c.group {
				want = 1
			}
			list := s.conditions(time.Now())
			if c.level == "" && len(list) > 0 || c.level != "" && len(list) != want {
				t.Fatalf("%d conditions: %v", len(list), list)
			}
			for _, v := range list {
				if v.Name != status.CertificateCondition || v.Level != c.level || !strings.Contains(v.Detail, c.says) {
					t.Errorf("%v, want %s: %s", v, c.level, c.says)
				}
			}
			write(300*day, late)
			if s.look(log); len(s.conditions(time.Now())) > 0 {
				t.Errorf("of new files: %v", s.conditions(time.Now()))
			}
		})
	}
}
