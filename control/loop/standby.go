package loop

import (
	"context"

	"sluice.dev/sluice/internal/wake"
)

// Standby compiles the objects of the feeds until ctx is done, for a process that waits for another
// one to end. It publishes and steers nothing, so Steering may be nil. A Loop with the same Tracker
// and Compiler that runs afterwards continues from there. It is called once, instead of Run.
// compiled, if not nil, is called after the first compile.
func (l *Loop) Standby(ctx context.Context, compiled func()) {
	defer close(l.ended)
	if l.await(ctx) != nil {
		return
	}
	l.prepare()
	for {
		l.Compiler.Compile(l.Tracker.Changes())
		l.note()
		if compiled != nil {
			compiled()
			compiled = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-l.Tracker.Wake():
			if !wake.After(ctx, l.Window) {
				return
			}
		}
	}
}
