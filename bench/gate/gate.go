// Package gate runs a real gateway for tests and demonstrations: `sluice run` as a
// process on a host of a topo.Net, with a directory of manifests and a
// configuration of its own, and the status socket to ask it.
//
// The gateway's state lies on tmpfs, as in production. Nothing is left after Stop;
// after Kill the state stays for the next Start, as after a crash.
package gate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/bench/topo"
	"sluice.dev/sluice/control/status"
)

// Config says which gateway to run where.
type Config struct {
	Sluice     string // path of the binary
	Host       *topo.Host
	NodeName   string   // of the gateway, default "gateway"
	Interfaces []string // default all of the host
	Options    string   // more of the configuration: YAML, whole top-level fields
	Env        []string
}

// Gateway is a gateway that runs, or that was killed and can be started again.
type Gateway struct {
	Client *status.Client

	config  Config
	dir     string // configuration and manifests
	state   string // on tmpfs
	process *topo.Process
	log     logTail
}

// tmpfs is where state may lie: mounted on every Linux.
const tmpfs = "/dev/shm"

// startTimeout bounds how long a gateway may take to forward.
const startTimeout = 20 * time.Second

// New prepares a gateway. Start starts it.
func New(c Config) (*Gateway, error) {
	if c.NodeName == "" {
		c.NodeName = "gateway"
	}
	if len(c.Interfaces) == 0 {
		for _, i := range c.Host.Interfaces {
			c.Interfaces = append(c.Interfaces, i.Name)
		}
	}
	dir, err := os.MkdirTemp("", "sluice-gate-")
	if err != nil {
		return nil, err
	}
	state, err := os.MkdirTemp(tmpfs, "sluice-")
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	g := &Gateway{config: c, dir: dir, state: state}
	g.Client = status.NewClient(g.socket())
	if err := os.Mkdir(g.manifests(), 0o755); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, g.WriteConfiguration(g.Configuration())
}

// WriteConfiguration replaces the configuration file; a running daemon reloads it.
func (g *Gateway) WriteConfiguration(text string) error {
	return replace(g.ConfigFile(), []byte(text))
}

func (g *Gateway) manifests() string { return filepath.Join(g.dir, "manifests") }
func (g *Gateway) socket() string    { return filepath.Join(g.state, "run", "status.sock") }
func (g *Gateway) bpffs() string     { return filepath.Join(g.state, "bpf") }

// ConfigFile is the path of the configuration.
func (g *Gateway) ConfigFile() string { return filepath.Join(g.dir, "gateway.yaml") }

// Socket is the path of the status socket, for `sluice --socket`.
func (g *Gateway) Socket() string { return g.socket() }

// PID is the daemon's process.
func (g *Gateway) PID() int { return g.process.PID() }

// Configuration is the gateway's configuration as New wrote it.
func (g *Gateway) Configuration() string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: sluice.dev/v1alpha1\nkind: GatewayConfiguration\nnodeName: %s\ninterfaces:\n", g.config.NodeName)
	for _, i := range g.config.Interfaces {
		fmt.Fprintf(&b, "- name: %s\n", i)
	}
	fmt.Fprintf(&b, "manifests: {directory: %s}\nstateDir: %s\nstatusSocket: %s\nbpfFS: %s\n",
		g.manifests(), filepath.Join(g.state, "run"), g.socket(), g.bpffs())
	if !strings.Contains(g.config.Options, "drain:") {
		b.WriteString("drain: {timeout: 1s}\n") // UDP flows would keep a test waiting for their timeout
	}
	b.WriteString(g.config.Options)
	return b.String()
}

// Start starts the daemon and returns once everything that is in the manifests
// is served.
func (g *Gateway) Start(ctx context.Context) error {
	p, err := g.config.Host.Start(topo.Command{
		Path: g.config.Sluice, Args: []string{"run", "--config", g.ConfigFile()},
		Env: append([]string{"SLUICE_VALIDATE=1"}, g.config.Env...), Stdout: &g.log, Stderr: &g.log,
	})
	if err != nil {
		return err
	}
	g.process = p
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		if err = g.Applied(ctx); err == nil {
			return nil
		}
		select {
		case <-p.Done():
			return fmt.Errorf("sluice run ended: %w\n%s", p.Err(), g.Log())
		case <-ctx.Done():
			return fmt.Errorf("sluice run does not forward: %w\n%s", err, g.Log())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Applied returns once everything written so far is published, steered and seen
// by every worker.
func (g *Gateway) Applied(ctx context.Context) error {
	_, err := g.Client.Status(ctx, true)
	return err
}

// Kill ends the daemon as a crash would.
func (g *Gateway) Kill() error {
	if err := g.process.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-g.process.Done()
	return nil
}

// stopGrace is longer than the configured drain, so that a daemon that does not
// stop by itself is an error.
const stopGrace = 20 * time.Second

// Stop ends the daemon as Kubernetes would and says if it ended badly.
func (g *Gateway) Stop() error {
	if g.process == nil {
		return nil
	}
	if err := g.process.Stop(stopGrace); err != nil {
		return fmt.Errorf("sluice run: %w\n%s", err, g.Log())
	}
	g.process = nil
	return nil
}

// Close stops the daemon if it runs, and removes what a killed one left.
func (g *Gateway) Close() error {
	err := g.Stop()
	g.Client.Close()
	// A daemon that was killed and not started again has its pins there.
	if e := unix.Unmount(g.bpffs(), unix.MNT_DETACH); e != nil && !errors.Is(e, unix.EINVAL) && !errors.Is(e, unix.ENOENT) {
		err = errors.Join(err, e)
	}
	return errors.Join(err, os.RemoveAll(g.state), os.RemoveAll(g.dir))
}

// Log is the end of what the daemon logged.
func (g *Gateway) Log() string { return g.log.String() }

// logTail keeps the last bytes written to it.
type logTail struct {
	mu sync.Mutex
	b  bytes.Buffer
}

const logTailBytes = 64 << 10

func (l *logTail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Write(p)
	if extra := l.b.Len() - logTailBytes; extra > 0 {
		l.b.Next(extra)
	}
	return len(p), nil
}

func (l *logTail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Laws returns the statistics at a moment when both laws hold exactly for every
// worker, or says which one does not, after a while in which no traffic should flow.
func (g *Gateway) Laws(ctx context.Context) (status.StatsView, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		s, err := g.Client.Stats(ctx)
		if err != nil {
			return s, err
		}
		broken := brokenLaws(&s)
		if broken == "" {
			return s, nil
		}
		select {
		case <-ctx.Done():
			return s, errors.New(broken)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func brokenLaws(s *status.StatsView) string {
	for i := range s.Workers {
		w := &s.Workers[i]
		if !w.PacketLaw.Holds {
			return fmt.Sprintf("worker %d: packet law: in %d, accounted %d", w.Worker, w.PacketLaw.In, w.PacketLaw.Accounted)
		}
		if !w.FrameLaw.Holds {
			return fmt.Sprintf("worker %d: frame law: %+v", w.Worker, w.FrameLaw)
		}
	}
	return ""
}
