package daemon

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/internal/heartbeat"
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
		"soon": {left: 13 * day, trusted: []*certs.Authority{late}, level: "warn", says: "the certificate ends at"},
		"ended": {left: -time.Minute, trusted: []*certs.Authority{late}, level: "fail",
			says: "the certificate has ended at"},
		"authority soon": {left: 90 * day, trusted: []*certs.Authority{soon}, level: "warn",
			says: "the last authority in group.tls.caFile ends at", group: true},
		"one authority soon": {left: 90 * day, trusted: []*certs.Authority{soon, late}},
		"key of another": {left: 90 * day, trusted: []*certs.Authority{late}, key: "none", level: "warn",
			says: "the files from before are used"},
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
			s.watch(cfg)
			s.look(time.Now(), log)
			if list := s.conditions(time.Now()); len(list) > 0 {
				t.Fatalf("of good files: %v", list)
			}
			write(c.left, c.trusted...)
			if c.key != "" {
				must(t, os.WriteFile(file(certs.KeyFile), []byte(c.key), 0o600))
			}
			s.look(time.Now(), log)
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
			if s.look(time.Now(), log); len(s.conditions(time.Now())) > 0 {
				t.Errorf("of new files: %v", s.conditions(time.Now()))
			}
		})
	}
}

// TestCertificateAges: each step of a certificate to its end is logged once, while only the clock
// moves. A chain whose issuer has ended may have another path, so only the certificate fails.
func TestCertificateAges(t *testing.T) {
	const day = 24 * time.Hour
	start := time.Unix(1e9, 0)
	var log bytes.Buffer
	c := certificates{list: []certificate{{use: "group", read: func() ([]expiry, error) {
		return []expiry{{of: "the certificate", at: start.Add(60 * day), then: "streams end"},
			{of: "an issuer", at: start.Add(30 * day), then: "some streams end", uncertain: true}}, nil
	}}}}
	for _, step := range []struct {
		days  time.Duration
		level string
		says  string // in the log; empty: nothing
	}{
		{0, "", ""}, {15, "", ""}, {17, "warn", "an issuer ends at"}, {18, "warn", ""},
		{30, "warn", "an issuer has ended at"}, {59, "warn", ""}, {60, "fail", "the certificate has ended at"},
		{61, "fail", ""},
	} {
		now := start.Add(step.days * day)
		log.Reset()
		c.look(now, slog.New(slog.NewTextHandler(&log, nil)))
		n := strings.Count(log.String(), "\n")
		if !strings.Contains(log.String(), step.says) || (n == 1) != (step.says != "") {
			t.Errorf("after %d days: %q is logged, want %q", step.days, log.String(), step.says)
		}
		level := ""
		for _, v := range c.conditions(now) {
			level += v.Level
		}
		if level != step.level {
			t.Errorf("after %d days the level is %q, want %q", step.days, level, step.level)
		}
	}
}

// TestCertificateFileHangs: a file whose disk hangs delays neither the start of the servers nor
// their end, and the status names the loop.
func TestCertificateFileHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, release := make(chan struct{}), make(chan struct{})
		var s servers
		s.certificates.list = []certificate{{read: func() ([]expiry, error) {
			close(began)
			<-release
			return nil, nil
		}}}
		var beats heartbeat.Set
		ctx, cancel := context.WithCancel(t.Context())
		s.certificates.start(ctx, &beats, slog.New(slog.DiscardHandler))
		<-began
		time.Sleep(time.Minute)
		late, dead := beats.Unready(), beats.Dead()
		if len(late) != 1 || !strings.Contains(late[0], "watch of certificates") || len(dead) > 0 {
			t.Errorf("late: %q, dead: %q", late, dead)
		}
		if list := s.certificates.conditions(time.Now()); len(list) > 0 {
			t.Errorf("not read, and the conditions are %v", list)
		}
		cancel()
		s.wait()
		close(release)
	})
}

// TestNoCertificates: without a certificate nothing runs.
func TestNoCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which fails if a goroutine is left
		var c certificates
		c.watch(&config.Configuration{})
		c.start(context.Background(), nil, slog.New(slog.DiscardHandler))
	})
}
