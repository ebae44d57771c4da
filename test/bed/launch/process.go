package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/topo"
)

// applyTimeout bounds every wait for the daemon to do something but end.
const applyTimeout = 20 * time.Second

// stopTimeout is the time limit for the daemon's end after SIGTERM: its drain time and a margin.
const stopTimeout = 10 * time.Second

var errNotRunning = errors.New("the daemon does not run")

// Launch starts the daemon and does not wait for it to forward.
func (g *Gateway) Launch() (err error) {
	g.process, err = g.launch()
	return err
}

// LaunchSecond starts a daemon that waits for the one that runs. When that one has ended by Kill or
// Stop, it is the gateway's.
func (g *Gateway) LaunchSecond() (err error) {
	g.second, err = g.launch()
	return err
}

// LaunchNext starts a daemon that is to take over from the one that runs (run --take-over).
func (g *Gateway) LaunchNext() (err error) {
	g.second, err = g.launch("--take-over")
	return err
}

// Use makes later starts run another binary.
func (g *Gateway) Use(sluice string) { g.config.Sluice = sluice }

// LaunchNextOf is LaunchNext for a container of a pod, by its UID.
func (g *Gateway) LaunchNextOf(pod string) (err error) {
	g.second, err = g.launchOf(pod)
	return err
}

// LaunchOf is Launch for a container of a pod, by its UID.
func (g *Gateway) LaunchOf(pod string) (err error) {
	g.process, err = g.launchOf(pod)
	return err
}

func (g *Gateway) launchOf(pod string) (*topo.Process, error) {
	as := *g
	as.config.Env = append(slices.Clone(g.config.Env), "POD_UID="+pod)
	return as.launch("--take-over")
}

// TakenOver returns once the daemon that ran has given all it had to the one of LaunchNext and has
// ended, which must be without an error. That one is the gateway's daemon then.
func (g *Gateway) TakenOver(ctx context.Context) error {
	if g.process == nil || g.second == nil {
		return errNotRunning
	}
	select {
	case <-g.process.Done():
	case <-g.second.Done():
		err := g.second.Err()
		g.second = nil
		return fmt.Errorf("the next daemon ended: %w", err)
	case <-time.After(g.patience(applyTimeout)):
		return errors.New("the daemon that ran has not ended")
	case <-ctx.Done():
		return ctx.Err()
	}
	err := g.process.Err()
	g.process, g.second = g.second, nil
	return err
}

// SecondPID is the number of the process of LaunchNext or LaunchSecond.
func (g *Gateway) SecondPID() int {
	if g.second == nil {
		return 0
	}
	return g.second.PID()
}

// OneLeft waits for the end of a hand-over in which one of the processes died, and makes the
// process that forwards the gateway's daemon. If both have ended it starts one, as a supervisor
// would. It returns that one's number.
func (g *Gateway) OneLeft(ctx context.Context) (pid int, err error) {
	running := func(p *topo.Process) bool {
		if p == nil {
			return false
		}
		select {
		case <-p.Done():
			return false
		default:
			return true
		}
	}
	// A process that is ending, or that waits for one, has done so by then; one that forwards
	// stays.
	err = topo.Until(ctx, g.patience(applyTimeout), 10*time.Millisecond, func(ctx context.Context) error {
		if !running(g.process) && !running(g.second) {
			return nil
		}
		v, err := g.Client.Status(ctx, false)
		switch {
		case err != nil:
			return err
		case running(g.process) && running(g.second):
			return errors.New("two processes run")
		case running(g.process) && v.PID == g.process.PID(), running(g.second) && v.PID == g.second.PID():
			return nil
		}
		return fmt.Errorf("process %d answers", v.PID)
	})
	if err != nil {
		return 0, err
	}
	switch {
	case running(g.process):
	case running(g.second):
		g.process = g.second
	default:
		if g.process, err = g.launch(); err != nil {
			return 0, err
		}
	}
	g.second = nil
	return g.PID(), nil
}

func (g *Gateway) launch(options ...string) (*topo.Process, error) {
	// Appended to, because the successor of a killed daemon writes on.
	log, err := os.OpenFile(g.LogFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the daemon has its own
	return g.config.Host.Start(topo.Command{
		Path: g.config.Sluice, Args: append([]string{"run", "--config", g.ConfigFile()}, options...),
		Env: g.config.Env, Stdout: log, Stderr: log, OwnSession: !g.config.InSession,
	})
}

// Start starts the daemon and returns once everything that is in the manifests is
// served.
func (g *Gateway) Start(ctx context.Context) error {
	if err := g.Launch(); err != nil {
		return err
	}
	_, err := g.Applied(ctx)
	return err
}

// Applied returns once everything written so far is published, steered and seen by
// every worker. A daemon that is just starting says no at first.
func (g *Gateway) Applied(ctx context.Context) (status.StatusView, error) {
	if g.process == nil {
		return status.StatusView{}, errNotRunning
	}
	var v status.StatusView
	err := topo.Until(ctx, g.patience(applyTimeout), 5*time.Millisecond, func(ctx context.Context) (err error) {
		if v, err = g.Client.Status(ctx, true); err != nil && !g.Running() {
			return topo.Final(fmt.Errorf("the daemon ended: %w", g.ended()))
		}
		return err
	})
	return v, err
}

// ended is how the process ended, for a sentence about it. It is told once: a later
// Stop has nothing to add.
func (g *Gateway) ended() error {
	err := g.process.Err()
	g.process = nil
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// Running reports whether the daemon runs.
func (g *Gateway) Running() bool {
	if g.process == nil {
		return false
	}
	select {
	case <-g.process.Done():
		return false
	default:
		return true
	}
}

// PID is the daemon's process; 0 while none runs.
func (g *Gateway) PID() int {
	if g.process == nil {
		return 0
	}
	return g.process.PID()
}

// Kill ends the daemon as a crash would, and returns when it is dead.
func (g *Gateway) Kill() error {
	if g.process == nil {
		return errNotRunning
	}
	if err := g.process.Signal(syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill the daemon: %w", err)
	}
	<-g.process.Done()
	g.process, g.second = g.second, nil
	return nil
}

// Stop ends the daemon as Kubernetes would, and says if it ended badly, or not at
// all, or before it was asked to.
func (g *Gateway) Stop() error {
	if g.process == nil {
		return nil
	}
	err := g.process.Signal(syscall.SIGTERM)
	if errors.Is(err, os.ErrProcessDone) {
		<-g.process.Done()
		return fmt.Errorf("the daemon ended before SIGTERM: %w", g.ended())
	}
	if err != nil {
		return fmt.Errorf("SIGTERM: %w", err)
	}
	select {
	case <-g.process.Done():
		err := g.process.Err()
		g.process, g.second = g.second, nil
		return err
	case <-time.After(g.patience(stopTimeout)):
		return fmt.Errorf("still runs %s after SIGTERM", g.patience(stopTimeout))
	}
}

// Close ends the daemon if it runs, however that goes, and removes everything.
func (g *Gateway) Close() error {
	var err error
	for _, p := range []*topo.Process{g.second, g.process} {
		if p != nil {
			err = errors.Join(err, p.Stop(g.patience(stopTimeout)))
		}
	}
	g.process, g.second = nil, nil
	return errors.Join(err, removeDirectory(g.dir))
}

// Command runs an operator's command against the daemon and returns its output.
func (g *Gateway) Command(ctx context.Context, args ...string) (string, error) {
	name := "sluice " + strings.Join(args, " ")
	ctx, cancel := context.WithTimeout(ctx, g.patience(applyTimeout))
	defer cancel()
	if args[0] != "cleanup" { // which has the configuration's socket
		args = append([]string{"--socket", g.Socket()}, args...)
	}
	var out strings.Builder
	p, err := g.config.Host.Start(topo.Command{Path: g.config.Sluice, Args: args, Stdout: &out, Stderr: &out})
	if err != nil {
		return "", err
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		return "", errors.Join(fmt.Errorf("%s: %w", name, ctx.Err()), p.Stop(0))
	}
	if err := p.Err(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(out.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

const logTailBytes = 64 << 10

// Log returns the end of the daemon's log.
func (g *Gateway) Log() string { return logTail(g.LogFile()) }

func logTail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-logTailBytes):])
}

// StopSecond ends the daemon that waits, as Kubernetes would.
func (g *Gateway) StopSecond() error {
	first := g.process
	g.process, g.second = g.second, nil
	err := g.Stop()
	g.process = first
	return err
}
