package launch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/announce/view"
	"sluice.dev/sluice/test/bed/topo"
)

// Announcer is `sluice-announcer` beside a gateway, as a process that runs, or can be started
// (again). One goroutine starts and ends it at a time; others may ask whether it has ended.
type Announcer struct {
	Path    string // of the binary
	Host    *topo.Host
	Gateway *Gateway // whose pulse it hears
	Node    string
	Dir     string   // for its files; sockets' paths must fit, so a short one
	Args    []string // more flags

	process atomic.Pointer[topo.Process] // nil while none runs, or none that matters any more
}

// StateDir is the directory of its status socket and of the state that it leaves for the next
// process.
func (a *Announcer) StateDir() string { return filepath.Join(a.Dir, "state") }

// Socket is its status socket, for `sluice announce --announcer`.
func (a *Announcer) Socket() string { return filepath.Join(a.StateDir(), "status.sock") }

// LogFile is the path of its log, to which one process after another appends.
func (a *Announcer) LogFile() string { return filepath.Join(a.Dir, "announcer.log") }

// Start starts it, with the capability that the chart's pod has, and no other.
func (a *Announcer) Start() error {
	log, err := os.OpenFile(a.LogFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own
	p, err := a.Host.Start(topo.Command{Path: "setpriv", Stdout: log, Stderr: log, Args: append([]string{
		"--bounding-set", "-all,+net_raw", "--inh-caps", "-all", "--", a.Path, "--node-name", a.Node, "--state-dir",
		a.StateDir(), "--log", "text", "--gateway", a.Gateway.PulseSocket(), "--listen", "",
	}, a.Args...)})
	a.process.Store(p)
	return err
}

// Ended is closed when it has ended without being told to; nil where it was, or does not run.
func (a *Announcer) Ended() <-chan struct{} {
	p := a.process.Load()
	if p == nil {
		return nil
	}
	return p.Done()
}

// Err is how it ended, while Ended is closed.
func (a *Announcer) Err() error {
	p := a.process.Load()
	if p == nil {
		return nil
	}
	return p.Err()
}

// PID is its process, 0 where it does not run.
func (a *Announcer) PID() int {
	p := a.process.Load()
	if p == nil {
		return 0
	}
	return p.PID()
}

// Kill ends it without a word, and returns when it is dead.
func (a *Announcer) Kill() error {
	p := a.process.Swap(nil) // before the signal: it is told to end
	if p == nil {
		return errors.New("the announcer does not run")
	}
	if err := p.Signal(os.Kill); err != nil {
		return err
	}
	<-p.Done()
	return nil
}

// Stop ends it as Kubernetes would; nothing where it does not run.
func (a *Announcer) Stop() error {
	p := a.process.Swap(nil)
	if p == nil {
		return nil
	}
	return p.Stop(5 * time.Second)
}

// Ask returns its status.
func (a *Announcer) Ask(ctx context.Context) (*view.View, error) { return view.Ask(ctx, a.Socket()) }

// Log returns the end of its log.
func (a *Announcer) Log() string { return logTail(a.LogFile()) }
