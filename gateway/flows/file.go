// Package flows has the daemon's operations on flows and affinity pins other than forwarding: it
// opens their files and takes over the content that the previous process left (Open, OpenPins),
// counts these flows for their backends (Reader.Adopt), lists and ends flows, returns the kernel
// program's rules that flows still need (Reader.InUse), and removes the pins to lost backends
// (Pins).
package flows

import (
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/internal/boottime"
)

// Open takes the lock on the flow table, which makes this process the only instance, and takes over
// the flows that the previous process left. If another process runs, it returns flowtable.ErrInUse
// and changes nothing.
func Open(c *config.Configuration, log *slog.Logger) (*flowtable.File, error) {
	resize := flowtable.ResizeFit
	if c.Flows.Resize == config.ResizeForce {
		resize = flowtable.ResizeForce
	}
	began := time.Now()
	file, err := flowtable.OpenFile(tablePath(c), TableConfig(c),
		flowtable.Time(boottime.Nanos()), resize)
	if err != nil {
		return nil, err
	}
	r := &file.Recovery
	switch {
	case r.Fresh:
		log.Info("flow table is new", "why", r.Why)
	case r.Moved:
		log.Info("flow table has another size or version, flows moved", "flows", r.Recovered, "expired", r.Expired,
			"torn", r.Torn, "fromIPv4", r.FoundFlows[0], "fromIPv6", r.FoundFlows[1], "fromVersion", r.FoundVersion,
			"took", time.Since(began).Round(time.Millisecond))
	default:
		log.Info("flow table taken over", "flows", r.Recovered, "expired", r.Expired, "torn", r.Torn)
	}
	if why := Losses(r); why != "" {
		log.Warn(why)
	}
	return file, nil
}

// Take maps the flow table that another process uses and has handed to this one
// (flowtable.TakeFile).
func Take(c *config.Configuration, file *os.File) (*flowtable.File, error) {
	return flowtable.TakeFile(file, tablePath(c), TableConfig(c))
}

func tablePath(c *config.Configuration) string { return filepath.Join(c.StateDir, "flows") }

// Layout describes the memory layout of the flow table of a configuration (flowtable.Layout).
func Layout(c *config.Configuration) string { return flowtable.Layout(TableConfig(c)) }

// halfOpenPart bounds the part of the table that half-open flows may use: one in eight, so that a
// flood of SYNs leaves room for other flows.
const halfOpenPart = 8

// TableConfig returns the sizes and timeouts of a configuration.
func TableConfig(c *config.Configuration) flowtable.Config {
	return flowtable.Config{
		IPv4Flows: uint32(c.Flows.IPv4), IPv6Flows: uint32(c.Flows.IPv6), Timeouts: timeouts(c),
		HalfOpen:     max(1, uint32(c.Flows.IPv4+c.Flows.IPv6)/halfOpenPart),
		LimitSources: uint32(c.Tuning.LimitSources), Group: c.Group.Enabled(),
	}
}

// timeouts returns the timeouts of the profile, replaced by those that are set.
func timeouts(c *config.Configuration) flowtable.Timeouts {
	t := flowtable.DefaultTimeouts()
	if c.Flows.Profile == config.ProfileRFC {
		t = flowtable.RFCTimeouts()
	}
	set := &c.Flows.Timeouts
	t.Established, t.Fin, t.TimeWaitBackend = set.Established.D(), set.FinWait.D(), c.Tuning.TimeWaitBackend.D()
	t.UDPUnreplied, t.UDPReplied = set.UDPUnreplied.D(), set.UDPReplied.D()
	return t
}
