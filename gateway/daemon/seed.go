package daemon

import (
	"errors"
	"sync"

	"sluice.dev/sluice/gateway/seed"
	"sluice.dev/sluice/serve/status"
)

// seedState owns the seed of backend selection that is in force.
type seedState struct {
	settings *settings

	mu      sync.Mutex // guards the fields below
	inForce seed.Seed
	err     error // of the last read; inForce is older then
}

// current returns the seed in force.
func (k *seedState) current() seed.Seed {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.inForce
}

// draw sets the seed of a process that owns stateDir. It draws a seed where the configuration has
// none and no predecessor has drawn one.
func (k *seedState) draw() error {
	s, err := seed.Take(k.settings.config())
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.inForce, k.err = s, nil
	k.mu.Unlock()
	k.settings.log.Info("seed of backend selection", "origin", s.Origin, "fingerprint", s.Fingerprint)
	return nil
}

// find sets the seed of a process that waits for its predecessor. The tables that it compiles while
// it waits are right unless the seed changes until it owns stateDir.
func (k *seedState) find() {
	if s, err := seed.Find(k.settings.config()); err == nil {
		k.mu.Lock()
		k.inForce = s
		k.mu.Unlock()
	}
}

// refresh reads the seed again, because its file may have changed. It reports whether the seed is
// another one, which needs new tables. If the file is gone or cannot be read, the last seed stays
// in force, because other gateways may still have it.
func (k *seedState) refresh() (changed bool) {
	c, last := k.settings.config(), k.current()
	next, err := seed.Find(c)
	switch {
	case last.Origin == seed.File && last.Path == next.Missing:
		err = errors.New("maglev.seedFile " + next.Missing + " does not exist any more, or is empty")
	case errors.Is(err, seed.ErrNone):
		next, err = seed.Take(c)
	}
	k.mu.Lock()
	changed = err == nil && next.Key != last.Key
	logged := k.err != nil && err != nil && k.err.Error() == err.Error()
	if k.err = err; err == nil {
		k.inForce = next
	}
	k.mu.Unlock()
	switch log := k.settings.log; {
	case err != nil && !logged:
		log.Error("the last seed of backend selection stays in force", "error", err)
	case changed:
		log.Info("seed of backend selection changed", "origin", next.Origin, "fingerprint", next.Fingerprint,
			"before", last.Fingerprint)
	}
	return changed
}

// condition describes the seed for the status.
func (k *seedState) condition() status.ConditionView {
	k.mu.Lock()
	defer k.mu.Unlock()
	v := k.inForce.View()
	if k.err != nil {
		return status.Warning(v.Name, v.Detail+"; it stays in force: "+k.err.Error())
	}
	return v
}

// metric implements metrics.Extras.Seed.
func (k *seedState) metric() (origin, fingerprint string) {
	s := k.current()
	return string(s.Origin), s.Fingerprint
}
