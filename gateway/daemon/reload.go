package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/gateway/nodeconfig"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/trusted"
	"sluice.dev/sluice/serve/status"
)

// configuration returns the configuration in force.
func (d *Daemon) configuration() *config.Configuration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.config
}

// watchConfig reloads the file when it changes and on a signal. It watches the directory, because
// editors and ConfigMaps replace the file. What has changed since the file was loaded, which may be
// long ago, is a change, too.
func (d *Daemon) watchConfig(ctx context.Context, hup <-chan os.Signal) {
	var events <-chan fsnotify.Event
	var lost <-chan error
	w, err := watchDirectory(filepath.Dir(d.file))
	if err == nil {
		defer w.Close()
		events, lost = w.Events, w.Errors
	} else {
		d.log.Warn("changes of the configuration file are not noticed; SIGHUP reloads it", "error", err)
	}
	beat := d.beats.Add("watch of the configuration", heartbeat.FileBounds)
	defer beat.Rest()
	d.look(ctx)
	watched := "" // maglev.seedFile
	for {
		beat.Beat()
		// A directory that is not there yet is tried again after each event.
		if f := d.configuration().Maglev.SeedFile; f != watched && f != "" && w != nil {
			if w.Add(filepath.Dir(f)) == nil {
				watched = f
				d.look(ctx)
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
			d.look(ctx)
		case err := <-lost: // such as too many events at once: ours may be among them
			beat.Beat()
			d.log.Debug("watching the configuration", "error", err)
			d.look(ctx)
		}
	}
}

// look reloads the file if it is another than was loaded last, and there. Otherwise it reads the
// seed again.
func (d *Daemon) look(ctx context.Context) {
	now, _ := readFile(d.file)
	d.mu.Lock()
	same := now == d.loaded
	d.mu.Unlock()
	if now.missing || same { // another file, or one that is just being replaced
		if d.lookForSeed() {
			d.configure(ctx)
		}
		return
	}
	d.reload(ctx)
}

// outcome is what reading the configuration file gave.
type outcome struct {
	content string
	refused string // why it must not be read; a change of modes ends that
	missing bool
}

func readFile(file string) (outcome, error) {
	content, err := config.Read(file)
	var refusal *trusted.Refusal
	if errors.As(err, &refusal) {
		return outcome{refused: err.Error()}, err
	}
	return outcome{content: string(content), missing: err != nil}, err
}

// load is config.Load, and returns what a later look at the file is compared with.
func load(file string) (c *config.Configuration, found outcome, err error) {
	if found, err = readFile(file); err == nil {
		c, err = config.ParseFile(file, []byte(found.content))
	}
	return c, found, err
}

func watchDirectory(dir string) (*fsnotify.Watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := w.Add(dir); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// reload applies the changes of the file that need no restart. An invalid file changes nothing.
func (d *Daemon) reload(ctx context.Context) {
	next, found, err := load(d.file)
	d.mu.Lock()
	d.loaded, d.reloadErr = found, err
	if err != nil {
		d.mu.Unlock()
		d.log.Error("configuration is refused, the last one stays in force", "error", err)
		return
	}
	merged := d.config.Reload(next)
	changes := d.config.Diff(next)
	d.config, d.needRestart, d.loadedAt = merged, nil, time.Now()
	for _, c := range changes {
		if c.Restart {
			d.needRestart = append(d.needRestart, c)
		}
		d.log.Info("configuration changed", "change", c.String())
	}
	d.mu.Unlock()
	d.setLevel(merged)
	if err := d.applySettings(); err != nil {
		d.log.Error("kernel program settings", "error", err)
	}
	if k := d.objects.kubernetes; k != nil {
		k.SetStaleEndpointTimeout(merged.Kubernetes.StaleEndpointTimeout.D())
	}
	if a := d.objects.addresses; a != nil {
		a.SetPools(merged.Pools())
	}
	d.checks.Configure(checkSettings(merged))
	d.lookForSeed()
	d.configure(ctx)
}

// configure updates the compiler's configuration by the file and the node's addresses. Before the
// first table it does nothing, as that is compiled with what is known then (loop.Config.Prepare),
// and does not wait, as the sources may be away for however long.
func (d *Daemon) configure(ctx context.Context) {
	select {
	case <-d.loop.Began():
	default:
		return
	}
	if err := d.loop.Configure(ctx, d.current); err != nil && ctx.Err() == nil {
		d.log.Error("configuration could not be compiled", "error", err)
	}
}

// current sets the compiler's configuration to the present state. It is called on the control
// loop's goroutine, so that of several concurrent callers of configure none applies an older state
// after a newer one.
func (d *Daemon) current(cfg *compiler.Config) {
	c := d.configuration()
	*cfg = d.compilerConfig(c)
	d.health.ports.SetAddresses(nodeconfig.HealthAddresses(c, cfg.NodeAddresses))
}

// followAddresses recompiles when the node's addresses change, which of them packets
// leave from, or which of them the Node object names.
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
			d.applySources()
			d.configure(ctx)
		case <-d.objects.nodeChanged:
			beat.Beat()
			d.configure(ctx)
		}
	}
}

func (d *Daemon) configView() status.ConfigView {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := status.ConfigView{File: d.file, LoadedAt: d.loadedAt}
	if d.reloadErr != nil {
		v.Error = d.reloadErr.Error()
	}
	for _, c := range d.needRestart {
		v.NeedRestart = append(v.NeedRestart, c.String())
	}
	return v
}

// compilerConfig returns the compiler's configuration.
func (d *Daemon) compilerConfig(c *config.Configuration) compiler.Config {
	node, _ := c.Node() // checked at start
	return nodeconfig.Compiler(c, node, d.currentSeed().Key, d.mirror.Addresses(), d.mirror.Sources(),
		d.objects.tracker.Node(node))
}
