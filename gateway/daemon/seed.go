package daemon

import (
	"errors"

	"sluice.dev/sluice/gateway/seed"
	"sluice.dev/sluice/serve/metrics"
	"sluice.dev/sluice/serve/status"
)

// takeSeed determines the seed for a process that owns stateDir, or is about to. It draws one where
// the configuration has none and no process before has drawn one.
func (d *Daemon) takeSeed() error {
	s, err := seed.Take(d.configuration(), d.file)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.seed, d.seedErr = s, nil
	d.mu.Unlock()
	d.log.Info("seed of backend selection", "origin", s.Origin, "fingerprint", s.Fingerprint)
	return nil
}

// findSeed determines the seed for a process that waits for another one: what it compiles meanwhile
// needs no second pass if the seed is still the same when it owns stateDir.
func (d *Daemon) findSeed() {
	if s, err := seed.Find(d.configuration(), d.file); err == nil {
		d.mu.Lock()
		d.seed = s
		d.mu.Unlock()
	}
}

// lookForSeed reads the seed again, as a file may have changed, and reports whether it is another
// one, which needs new tables. A file that is gone or cannot be read leaves the last seed in force:
// other gateways may still have it.
func (d *Daemon) lookForSeed() (changed bool) {
	c, last := d.configuration(), d.currentSeed()
	next, err := seed.Find(c, d.file)
	switch {
	case last.Origin == seed.File && last.Path == next.Missing:
		err = errors.New("maglev.seedFile " + next.Missing + " does not exist any more, or is empty")
	case errors.Is(err, seed.ErrNone):
		next, err = seed.Take(c, d.file)
	}
	d.mu.Lock()
	changed = err == nil && next.Key != last.Key
	said := d.seedErr != nil && err != nil && d.seedErr.Error() == err.Error()
	if d.seedErr = err; err == nil {
		d.seed = next
	}
	d.mu.Unlock()
	switch {
	case err != nil && !said:
		d.log.Error("the last seed of backend selection stays in force", "error", err)
	case changed:
		d.log.Info("seed of backend selection changed", "origin", next.Origin, "fingerprint", next.Fingerprint,
			"before", last.Fingerprint)
	}
	return changed
}

// currentSeed returns the seed in force.
func (d *Daemon) currentSeed() seed.Seed {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.seed
}

// seedCondition returns the condition about the seed.
func (d *Daemon) seedCondition() status.ConditionView {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.seed.View()
	if d.seedErr != nil {
		return status.Warning(v.Name, v.Detail+"; it stays in force: "+d.seedErr.Error())
	}
	return v
}

// seedInfo is the seed as metrics have it.
func (d *Daemon) seedInfo() metrics.Seed {
	s := d.currentSeed()
	return metrics.Seed{Origin: string(s.Origin), Fingerprint: s.Fingerprint}
}
