package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/gateway/peers"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/trusted"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/web"
)

// certificates watches the certificates that this gateway presents. The group reads the files for
// each connection, and the metrics when they have changed, so nothing else tells an operator that
// they end, until no connection can be opened.
type certificates struct {
	mu   sync.Mutex
	list []certificate
}

// certificate is one use of a certificate.
type certificate struct {
	use  string // the section of the configuration
	read func() ([]expiry, error)

	expiries []expiry // of the files that could be used last
	err      error    // why the present files cannot be used
	logged   status.ConditionView
}

// expiry is when a certificate that a use needs ends.
type expiry struct {
	of   string
	at   time.Time
	then string // the consequence
	// uncertain: a client may not need this certificate.
	uncertain bool
}

// Times of certificates.
const (
	// certificateWarning is how long before a certificate expires the operator is warned: longer
	// than a holiday, shorter than the remaining validity at which cert-manager renews a 90-day
	// certificate.
	certificateWarning = 14 * 24 * time.Hour
	certificateEvery   = time.Minute
)

// watch lists the certificates of a configuration. It reads none: a hand-over waits for it.
func (c *certificates) watch(of *config.Configuration) {
	var list []certificate
	if t := of.Metrics.TLS; t.CertFile != "" {
		list = append(list, certificate{use: "metrics", read: func() ([]expiry, error) {
			own, err := web.Ends(t.CertFile, t.KeyFile)
			return expiries(own, "clients refuse the metrics"), err
		}})
	}
	if of.Group.Enabled() {
		t := of.Group.TLS
		name, _ := of.Node() // checked at start
		files := peers.Files{Certificate: t.CertFile, Key: t.KeyFile, Authorities: t.CAFile}
		list = append(list, certificate{use: "group", read: func() ([]expiry, error) {
			own, authorities, err := files.Ends(name)
			then := "gateways open no stream to this one, and new flows are not copied"
			return append(expiries(own, then), expiry{of: "the last authority in group.tls.caFile", at: authorities,
				then: "this gateway opens no stream to others, and new flows are not copied"}), err
		}})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = list
}

// expiries lists the ends of a certificate and its chain.
func expiries(own trusted.Ends, then string) []expiry {
	list := []expiry{{of: "the certificate", at: own.Certificate, then: then}}
	if !own.Issuers.IsZero() {
		list = append(list, expiry{of: "an issuer in the certificate's chain", at: own.Issuers, uncertain: true,
			then: "without another path " + then})
	}
	return list
}

// start runs the watch until ctx ends, if there is a certificate. Nothing waits for its end,
// because the disk of a file may hang.
func (c *certificates) start(ctx context.Context, beats *heartbeat.Set, log *slog.Logger) {
	if len(c.present()) > 0 {
		go c.run(ctx, beats.Add("watch of certificates", heartbeat.FileBounds), log)
	}
}

// run reads the files again and again until ctx ends.
func (c *certificates) run(ctx context.Context, beat *heartbeat.Beat, log *slog.Logger) {
	tick := time.NewTicker(certificateEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		beat.Beat()
		c.look(time.Now(), log)
		beat.Rest()
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// look reads the files again. The lock is not held meanwhile, so that the status does not wait.
func (c *certificates) look(now time.Time, log *slog.Logger) {
	next := c.present()
	for i := range next {
		next[i].look(now, log)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = next
}

// present returns the certificates as they were read last.
func (c *certificates) present() []certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.list)
}

// look reads the files, and logs a condition that is another than the last.
func (c *certificate) look(now time.Time, log *slog.Logger) {
	list, err := c.read()
	if c.err = err; err == nil {
		c.expiries = list
	}
	v, bad := c.condition(now)
	if bad && v != c.logged {
		log.Warn("a certificate ends soon, or cannot be used", "section", c.use, "why", v.Detail)
	}
	c.logged = v
}

// condition describes a certificate that ends soon, or has ended, or whose next files cannot be
// used.
func (c *certificate) condition(now time.Time) (v status.ConditionView, bad bool) {
	switch {
	case c.err == nil && len(c.expiries) == 0: // not read yet
		return v, false
	case len(c.expiries) == 0:
		return status.Warning(status.CertificateCondition, fmt.Sprintf("%s.tls: %v", c.use, c.err)), true
	}
	e := c.next(now)
	at := e.at.UTC().Format(time.RFC3339)
	switch {
	case e.ended(now):
		v = status.Failed(status.CertificateCondition, fmt.Sprintf("%s.tls: %s has ended at %s: %s", c.use, e.of, at,
			e.then))
		if e.uncertain {
			v = status.Warning(v.Name, v.Detail)
		}
	case now.Add(certificateWarning).After(e.at):
		v = status.Warning(status.CertificateCondition, fmt.Sprintf("%s.tls: %s ends at %s; then %s: replace the "+
			"files, no restart is needed", c.use, e.of, at, e.then))
	case c.err != nil:
		v = status.Warning(status.CertificateCondition, fmt.Sprintf("%s.tls: the files from before are used, until %s",
			c.use, at))
	default:
		return v, false
	}
	if c.err != nil {
		v.Detail += "; the present files cannot be used: " + c.err.Error()
	}
	return v, true
}

// next returns the expiry to report: of a certificate that is needed and has ended, or else the
// first.
func (c *certificate) next(now time.Time) expiry {
	first := c.expiries[0]
	for _, e := range c.expiries {
		switch {
		case e.ended(now) && !e.uncertain:
			return e
		case e.at.Before(first.at):
			first = e
		}
	}
	return first
}

// ended reports whether the certificate has ended.
func (e *expiry) ended(now time.Time) bool { return !now.Before(e.at) }

// conditions returns the conditions of all certificates.
func (c *certificates) conditions(now time.Time) (list []status.ConditionView) {
	for _, of := range c.present() {
		if v, bad := of.condition(now); bad {
			list = append(list, v)
		}
	}
	return list
}
