package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/gateway/nodeconfig"
	"sluice.dev/sluice/internal/heartbeat"
)

// controlWindow is the pause of the control loop after a pass.
const controlWindow = 2 * time.Millisecond

// compilerConfig returns the compiler's configuration.
func (d *Daemon) compilerConfig(c *config.Configuration) compiler.Config {
	node, _ := c.Node() // checked at start
	cc := nodeconfig.Compiler(c, node, d.seed.current().Key, d.mirror.Addresses(), d.mirror.Sources(),
		d.inputs.tracker.Node(node))
	d.groupSources(&cc)
	return cc
}

// prepare sets the compiler's configuration to the present state. The control loop's goroutine
// calls it, so that of several concurrent calls of configure none applies an older state after a
// newer one.
func (d *Daemon) prepare(cfg *compiler.Config) {
	c := d.settings.config()
	*cfg = d.compilerConfig(c)
	d.health.ports.SetAddresses(nodeconfig.HealthAddresses(c, cfg.NodeAddresses))
}

// configure updates the compiler's configuration from the file and the node's addresses. Before the
// first table it does nothing, because the table will be compiled with the state at that time
// (loop.Config.Prepare), and must not wait, because the sources may be away for any time.
func (d *Daemon) configure(ctx context.Context) {
	select {
	case <-d.loop.Began():
	default:
		return
	}
	if err := d.loop.Configure(ctx, d.prepare); err != nil && ctx.Err() == nil {
		d.log.Error("configuration could not be compiled", "error", err)
	}
}

// followAddresses recompiles after a change of the node's addresses, of the ones that packets leave
// from, or of the ones in the Node object.
func (d *Daemon) followAddresses(ctx context.Context) {
	beat := d.beats.Add("watch of the node's addresses", heartbeat.DefaultBounds)
	defer beat.Rest()
	for {
		beat.Rest()
		select {
		case <-ctx.Done():
			return
		case <-d.mirror.AddressesChanged():
			beat.Beat()
			d.host.applySources()
			d.configure(ctx)
		case <-d.inputs.nodeChanged:
			beat.Beat()
			d.configure(ctx)
		}
	}
}

// configRescan is the interval of comparisons without a notification: a directory that is replaced
// loses its watch, and a node may have no inotify instance left.
const configRescan = 5 * time.Second

// watchConfig reloads the file when it changes and on a signal.
func (d *Daemon) watchConfig(ctx context.Context, hup <-chan os.Signal) {
	notify, err := fsnotify.NewWatcher()
	if err == nil {
		defer notify.Close()
	} else {
		d.log.Warn("no file notifications; changes of the configuration are found by comparison", "every",
			configRescan, "error", err)
	}
	tick := time.NewTicker(configRescan)
	defer tick.Stop()
	d.followConfig(ctx, hup, notify, tick.C)
}

// followConfig is watchConfig with its notifications, nil if there are none, and the times of
// comparisons without them. It begins with a comparison, because the file may have changed after it
// was loaded.
func (d *Daemon) followConfig(
	ctx context.Context, hup <-chan os.Signal, notify *fsnotify.Watcher, tick <-chan time.Time,
) {
	var events <-chan fsnotify.Event
	var lost <-chan error
	if notify != nil {
		events, lost = notify.Events, notify.Errors
	}
	beat := d.beats.Add("watch of the configuration", heartbeat.FileBounds)
	defer beat.Rest()
	replaced := false
	var compared chan struct{} // closed after the comparison, unless nil
	for {
		beat.Beat()
		d.watchDirectories(notify)
		d.compareConfig(ctx, replaced)
		if compared != nil {
			close(compared)
		}
		beat.Rest()
		replaced, compared = false, nil
		select {
		case <-ctx.Done():
			return
		case <-hup:
			beat.Beat()
			d.reload(ctx)
		case <-events:
			replaced = true
		case err := <-lost: // too many events at once, for example: one of the lost may be the file's
			d.log.Debug("watching the configuration", "error", err)
			replaced = true
		case <-tick:
		case compared = <-d.compares:
		}
	}
}

// watchDirectories watches the directories of the file and of maglev.seedFile, because editors and
// ConfigMaps replace the files. It is called before each comparison, because a directory that is
// moved or made again loses its watch. A comparison reports a directory that does not exist.
func (d *Daemon) watchDirectories(notify *fsnotify.Watcher) {
	if notify == nil {
		return
	}
	_ = notify.Add(filepath.Dir(d.settings.file))
	if f := d.settings.config().Maglev.SeedFile; f != "" {
		_ = notify.Add(filepath.Dir(f))
	}
}

// compareConfig reloads the file if it has changed. Otherwise it reads the seed again. replaced is
// settings.changed's.
func (d *Daemon) compareConfig(ctx context.Context, replaced bool) {
	if d.settings.changed(replaced) {
		d.reload(ctx)
	} else if d.seed.refresh() {
		d.configure(ctx)
	}
}

// waitConfig returns nil when the files, as they were at the call, are loaded and compiled, or
// refused.
func (d *Daemon) waitConfig(ctx context.Context) error {
	done := make(chan struct{})
	requests := d.compares
	for {
		select {
		case requests <- done:
			requests = nil
		case <-done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%w: the configuration file is not compared with the loaded one yet", ctx.Err())
		case <-d.life.ctx.Done():
			return errors.New("the daemon ends")
		}
	}
}

// reload applies the changes of the file that need no restart. An invalid file changes nothing.
func (d *Daemon) reload(ctx context.Context) {
	c := d.settings.reload()
	if c == nil {
		return
	}
	if err := d.host.applySettings(); err != nil {
		d.log.Error("kernel program settings", "error", err)
	}
	d.inputs.reload(c)
	d.checks.Configure(checkSettings(c))
	d.denials.Configure(c.Deny)
	d.seed.refresh()
	d.configure(ctx)
}
