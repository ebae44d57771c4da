package daemon

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/host/neigh"
	"sluice.dev/sluice/internal/wake"
)

// absent is a source that cannot be read yet.
type absent struct{}

func (absent) Source() objects.Source { return objects.Source{Kind: "absent"} }
func (absent) Sync(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestChangesBeforeTheFirstTable: a gateway waits for its API server for any time. Changes of the
// node's addresses, its Node or the configuration must not stall its loops meanwhile.
func TestChangesBeforeTheFirstTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		log := slog.New(slog.DiscardHandler)
		d := &Daemon{log: log, loop: loop.New(loop.Config{Log: log, Tracker: tracker.New(),
			Compiler: compiler.New(compiler.Config{}), Feeds: []tracker.Feed{absent{}}})}
		d.inputs.nodeChanged = wake.NewFlag()
		var err error
		if d.mirror, err = neigh.New(neigh.Config{Table: nexthop.NewTable(), Logger: log}); err != nil {
			t.Fatal(err)
		}
		d.life.spawn(func() { _ = d.loop.Run(ctx) })
		d.life.spawn(func() { d.followAddresses(ctx) })
		d.inputs.nodeChanged.Raise()
		time.Sleep(time.Hour)
		if late := d.beats.Unready(); len(late) > 0 {
			t.Errorf("not ready %q, and for a restart %q", late, d.beats.Dead())
		}
		cancel()
		d.life.group.Wait()
	})
}
