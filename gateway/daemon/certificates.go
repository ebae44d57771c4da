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
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/web"
)

// certificates watches the certificates that this gateway presents. They are read again for each
// connection, so nothing else tells an operator that they end, until no connection can be opened.
type certificates struct {
	mu   sync.Mutex
	list []certificate
}

// certificate is one use of a certificate.
type certificate struct {
	use  string // the section of the configuration
	ends string // what ends with it
	read func() (time.Time, error)

	expires time.Time // of the files that could be used last
	err     error     // why the present files cannot be used
}

// Times of certificates.
const (
	// certificateWarning is the time before the end of a certificate at which an operator is told:
	// longer than a holiday, and shorter than the rest at which cert-manager renews one of 90 days.
	certificateWarning = 14 * 24 * time.Hour
	certificateEvery   = time.Minute
)

// watch lists the certificates of a configuration, and reads them for the first time.
func (c *certificates) watch(of *config.Configuration, log *slog.Logger) {
	var list []certificate
	if t := of.Metrics.TLS; t.CertFile != "" {
		list = append(list, certificate{use: "metrics", ends: "clients refuse the metrics",
			read: func() (time.Time, error) { return web.Expires(t.CertFile, t.KeyFile) }})
	}
	if of.Group.Enabled() {
		t := of.Group.TLS
		name, _ := of.Node() // checked at start
		files := peers.Files{Certificate: t.CertFile, Key: t.KeyFile, Authorities: t.CAFile}
		list = append(list, certificate{use: "group",
			ends: "gateways open no stream to this one, and new flows are not copied",
			read: func() (time.Time, error) { return files.Expires(name) }})
	}
	c.mu.Lock()
	c.list = list
	c.mu.Unlock()
	c.look(log)
}

// run reads the files again and again until ctx ends. A disk that does not answer delays only this.
func (c *certificates) run(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(certificateEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.look(log)
		}
	}
}

// look reads the files again. The lock is not held meanwhile, so that the status does not wait.
func (c *certificates) look(log *slog.Logger) {
	next := c.present()
	for i := range next {
		next[i].look(log)
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

// look reads the files, and logs a condition that is another than before.
func (c *certificate) look(log *slog.Logger) {
	now := time.Now()
	before, _ := c.condition(now)
	expires, err := c.read()
	if c.err = err; err == nil {
		c.expires = expires
	}
	if v, bad := c.condition(now); bad && v != before {
		log.Warn("a certificate needs its successor", "section", c.use, "why", v.Detail)
	}
}

// condition describes a certificate that ends soon, or has ended, or whose next files cannot be
// used.
func (c *certificate) condition(now time.Time) (v status.ConditionView, bad bool) {
	at := c.expires.UTC().Format(time.RFC3339)
	switch {
	case c.expires.IsZero() && c.err == nil: // not read yet
		return v, false
	case c.expires.IsZero():
		return status.Warning(status.CertificateCondition, fmt.Sprintf("%s.tls: %v", c.use, c.err)), true
	case !now.Before(c.expires):
		v = status.Failed(status.CertificateCondition, fmt.Sprintf("%s.tls: the certificate has ended at %s: %s",
			c.use, at, c.ends))
	case now.Add(certificateWarning).After(c.expires):
		v = status.Warning(status.CertificateCondition, fmt.Sprintf("%s.tls: the certificate ends at %s; then %s: "+
			"replace the files, no restart is needed", c.use, at, c.ends))
	case c.err != nil:
		v = status.Warning(status.CertificateCondition, fmt.Sprintf("%s.tls: the certificate from before is used, "+
			"until %s", c.use, at))
	default:
		return v, false
	}
	if c.err != nil {
		v.Detail += "; the present files cannot be used: " + c.err.Error()
	}
	return v, true
}

// conditions returns those of all certificates.
func (c *certificates) conditions(now time.Time) (list []status.ConditionView) {
	for _, of := range c.present() {
		if v, bad := of.condition(now); bad {
			list = append(list, v)
		}
	}
	return list
}
