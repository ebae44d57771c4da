package daemon

import (
	"context"
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

// watchConfig reloads the file when it changes and on a signal. It watches the directory, because
// editors and ConfigMaps replace the file. It begins with a comparison, because the file may have
// changed after it was loaded.
func (d *Daemon) watchConfig(ctx context.Context, hup <-chan os.Signal) {
	var events <-chan fsnotify.Event
	var lost <-chan error
	w, err := watchDirectory(filepath.Dir(d.settings.file))
	if err == nil {
		defer w.Close()
		events, lost = w.Events, w.Errors
	} else {
		d.log.Warn("changes of the configuration file are not noticed; SIGHUP reloads it", "error", err)
	}
	beat := d.beats.Add("watch of the configuration", heartbeat.FileBounds)
	defer beat.Rest()
	d.compareConfig(ctx)
	watched := "" // maglev.seedFile
	for {
		beat.Beat()
		// A directory that does not exist yet is tried again after each event.
		if f := d.settings.config().Maglev.SeedFile; f != watched && f != "" && w != nil {
			if w.Add(filepath.Dir(f)) == nil {
				watched = f
				d.compareConfig(ctx)
			}
		}
		beat.Rest()
		select {
		case <-ctx.Done():
			return
		case <-hup:
			beat.Beat()
			d.reload(ctx)
		case <-events:
			beat.Beat()
			d.compareConfig(ctx)
		case err := <-lost: // too many events at once, for example: one of the lost may be the file's
			beat.Beat()
			d.log.Debug("watching the configuration", "error", err)
			d.compareConfig(ctx)
		}
	}
}

// compareConfig reloads the file if it has changed. Otherwise it reads the seed again.
func (d *Daemon) compareConfig(ctx context.Context) {
	if d.settings.changed() {
		d.reload(ctx)
	} else if d.seed.refresh() {
		d.configure(ctx)
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
