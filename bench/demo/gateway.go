package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sluice.dev/sluice/bench/topo"
	"sluice.dev/sluice/control/status"
)

// gateway is the daemon under demonstration: its files, and its process.
type gateway struct {
	host   *topo.Host
	binary string
	dir    string // on tmpfs; everything it reads and writes is in it
	log    *os.File
	client *status.Client

	process *topo.Process // nil before the first start
}

// Names in the gateway's directory.
const (
	configFile   = "gateway.yaml"
	logFile      = "sluice.log"
	manifestsDir = "manifests"
	bpfDir       = "bpf"
	stateDir     = "state"
	socketFile   = "status.sock"
)

// newGateway writes the files of a gateway and starts nothing.
func newGateway(h *topo.Host, binary, dir string) (*gateway, error) {
	g := &gateway{host: h, binary: binary, dir: dir, client: status.NewClient(filepath.Join(dir, socketFile))}
	if err := writeManifests(g.path(manifestsDir)); err != nil {
		return nil, err
	}
	if err := os.WriteFile(g.path(configFile), []byte(configuration(dir)), 0o644); err != nil {
		return nil, err
	}
	// Appended to, because the successor of a killed daemon writes on.
	log, err := os.OpenFile(g.path(logFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	g.log = log
	return g, err
}

func (g *gateway) path(name string) string { return filepath.Join(g.dir, name) }

// configuration is a gateway's that keeps everything in one directory.
func configuration(dir string) string {
	in := func(name string) string { return filepath.Join(dir, name) }
	return `# Made by sluice-bench demo. All other fields have their defaults: sluice config defaults
apiVersion: sluice.dev/v1alpha1
kind: GatewayConfiguration
nodeName: ` + nodeName + `
interfaces:
- name: front0
- name: back0
flows:
  ipv4: 65536
  ipv6: 65536
manifests:
  directory: ` + in(manifestsDir) + `
stateDir: ` + in(stateDir) + `
bpfFS: ` + in(bpfDir) + `
statusSocket: ` + in(socketFile) + `
drain:
  timeout: 1s
`
}

// start starts the daemon. It does not wait for it to forward.
func (g *gateway) start() (err error) {
	g.process, err = g.host.Start(topo.Command{
		Path: g.binary, Args: []string{"run", "--config", g.path(configFile)}, Stdout: g.log, Stderr: g.log,
	})
	return err
}

// applyTimeout bounds every wait for the daemon.
const applyTimeout = 15 * time.Second

// applied waits until everything written so far is published, steered and seen by
// every worker. A daemon that is just starting says no at first.
func (g *gateway) applied(ctx context.Context) (status.StatusView, error) {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		v, err := g.client.Status(ctx, true)
		if err == nil {
			return v, nil
		}
		select {
		case <-tick.C:
		case <-g.process.Done():
			return v, fmt.Errorf("the daemon ended: %w", g.ended())
		case <-ctx.Done():
			return v, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// ended is how the process ended, for a sentence about it.
func (g *gateway) ended() error {
	if err := g.process.Err(); err != nil {
		return err
	}
	return errors.New("exit status 0")
}

// kill kills the daemon and returns when it is dead.
func (g *gateway) kill() error {
	if err := g.process.Signal(syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill the daemon: %w", err)
	}
	<-g.process.Done()
	return nil
}

// stopTimeout is what the daemon may take to end after SIGTERM: its drain time and
// then some.
const stopTimeout = 10 * time.Second

// terminate asks the daemon to end and returns how it did.
func (g *gateway) terminate() error {
	if err := g.process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("SIGTERM: %w", err)
	}
	select {
	case <-g.process.Done():
		return g.process.Err()
	case <-time.After(stopTimeout):
		return fmt.Errorf("still runs %s after SIGTERM", stopTimeout)
	}
}

// alive says whether the daemon runs.
func (g *gateway) alive() bool {
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

// command runs an operator's command against the daemon and returns what it printed.
func (g *gateway) command(args ...string) (string, error) {
	var out strings.Builder
	p, err := g.host.Start(topo.Command{
		Path: g.binary, Args: append([]string{"--socket", g.path(socketFile)}, args...), Stdout: &out, Stderr: &out,
	})
	if err != nil {
		return "", err
	}
	select {
	case <-p.Done():
	case <-time.After(applyTimeout):
		return "", errors.Join(fmt.Errorf("sluice %s takes too long", strings.Join(args, " ")), p.Stop(0))
	}
	if err := p.Err(); err != nil {
		return "", fmt.Errorf("sluice %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(out.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// logTail is the end of the daemon's log.
func (g *gateway) logTail(lines int) []string {
	text, err := os.ReadFile(g.path(logFile))
	if err != nil {
		return []string{err.Error()}
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return all[max(0, len(all)-lines):]
}
