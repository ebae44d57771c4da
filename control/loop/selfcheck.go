package loop

import (
	"time"

	"sluice.dev/sluice/control/objects"
)

// checkEvery is the interval of checks of a few Services.
const checkEvery = 30 * time.Second

// SelfCheck counts the comparisons of the table with a freshly compiled one.
type SelfCheck struct {
	// Runs counts checks, Services the Services that they compared, Differences the checks that
	// found a difference. After a difference the whole table is rebuilt.
	Runs        uint64 `json:"runs"`
	Services    uint64 `json:"services"`
	Differences uint64 `json:"differences"`
	// Last is the last difference, At its time.
	Last string    `json:"last,omitempty"`
	At   time.Time `json:"at,omitzero"`
}

// SelfCheck may be called from any goroutine.
func (l *Loop) SelfCheck() SelfCheck {
	l.progress.mu.Lock()
	defer l.progress.mu.Unlock()
	return l.progress.check
}

// selfCheck compares a few Services every checkEvery, and rebuilds the table after a difference. It
// runs on the loop's goroutine, so that the Tracker's last changes are compiled.
func (l *Loop) selfCheck(now time.Time) {
	if !l.replaced || now.Sub(l.checked) < checkEvery {
		return
	}
	l.checked = now
	checked, difference := l.Compiler.Check(l.Tracker, l.Publisher.handle.Load())
	p := &l.progress
	p.mu.Lock()
	p.check.Runs++
	p.check.Services += uint64(checked)
	if difference != "" {
		p.check.Differences++
		p.check.Last, p.check.At = difference, now
	}
	p.mu.Unlock()
	if difference == "" {
		return
	}
	l.Log.Error("the table is not what the objects say, which is a bug of Sluice; please report it. All of it is "+
		"built anew", "difference", difference)
	none := &objects.Changes{}
	l.passBegan(syncOf(none, true))
	l.apply(l.Compiler.Rebuild(l.Tracker.State()))
	l.notify(none)
}
