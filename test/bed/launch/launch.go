// Package launch runs a real gateway for tests and demonstrations: `sluice run` as a
// process on a host of a topo.Net, on manifests and a configuration of its own.
//
// Everything it reads and writes is in one directory on tmpfs, where the flow table
// is in production too:
//
//	/dev/shm/sluice-gate-PID-RANDOM/    PID is of the process that called New
//	    gateway.yaml  manifests/        the daemon's input
//	    sluice.log                      its log, one daemon after another
//	    state/  bpf/                    files and pins that it makes
//
// A daemon that was stopped must have removed the last line, and all that it made in the host's
// namespace: Leftovers returns the rest. One that was killed leaves it all to the next, as after a
// crash. Close removes the directory, in any state; Sweep does that for processes that were killed
// before they could.
//
// A Gateway belongs to one goroutine, its Client to any. Another one may write manifests: Apply,
// Write and Remove touch nothing else.
package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// Config says which gateway to run where.
type Config struct {
	Sluice     string // path of the binary
	Host       *topo.Host
	NodeName   string   // of the gateway, default "gateway"
	Revision   string   // of the binary's answers, default status.Revision
	Interfaces []string // default all of the host
	Options    string   // more of the configuration: YAML, whole top-level fields
	Env        []string // of the daemon, added to this process's
	// InSession: the daemon belongs to the session of this process, and goes before others where
	// that does. Else it leads one, as a service does.
	InSession bool
	// Patience multiplies every bound of time, on machines that are slow; 0 takes the environment's
	// value (package machine).
	Patience int
}

// Gateway is a gateway that runs, or that can be started (again).
type Gateway struct {
	Client *status.Client

	config  Config
	dir     string
	process *topo.Process // nil while none runs, or none that matters any more
	second  *topo.Process // waits for process; nil if there is none
}

// Names in the gateway's directory.
const (
	configFile   = "gateway.yaml"
	manifestsDir = "manifests"
	logFile      = "sluice.log"
	stateDir     = "state"
	bpfDir       = "bpf"
	socketFile   = "status.sock" // in stateDir
)

// New writes a gateway's configuration and starts nothing.
func New(c Config) (*Gateway, error) {
	if c.NodeName == "" {
		c.NodeName = "gateway"
	}
	if len(c.Interfaces) == 0 {
		for _, i := range c.Host.Interfaces {
			if !slices.Contains(c.Interfaces, i.Name) { // one may have addresses of two VLANs
				c.Interfaces = append(c.Interfaces, i.Name)
			}
		}
	}
	dir, err := makeDirectory()
	if err != nil {
		return nil, err
	}
	g := &Gateway{config: c, dir: dir}
	g.Client = status.NewClient(g.Socket())
	if c.Revision != "" {
		g.Client.SetRevision(c.Revision)
	}
	if err = os.Mkdir(g.Manifests(), 0o755); err == nil {
		err = g.WriteConfiguration(g.Configuration())
	}
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// patience is a bound of time on this machine.
func (g *Gateway) patience(d time.Duration) time.Duration {
	if g.config.Patience == 0 {
		return machine.Slower(d)
	}
	return time.Duration(g.config.Patience) * d
}

func (g *Gateway) path(name string) string { return filepath.Join(g.dir, name) }

// ConfigFile is the path of the configuration.
func (g *Gateway) ConfigFile() string { return g.path(configFile) }

// Manifests is the directory that the daemon reads Services and slices from.
func (g *Gateway) Manifests() string { return g.path(manifestsDir) }

// LogFile is the path of the daemon's log.
func (g *Gateway) LogFile() string { return g.path(logFile) }

// Socket is the path of the status socket, for `sluice --socket`.
func (g *Gateway) Socket() string { return g.path(filepath.Join(stateDir, socketFile)) }

// PulseSocket is the path of the socket that announcers read.
func (g *Gateway) PulseSocket() string {
	return g.path(filepath.Join(stateDir, config.PulseDirectory, config.PulseSocketFile))
}

// StateDir is the directory of the daemon's files, such as the flow table.
func (g *Gateway) StateDir() string { return g.path(stateDir) }

// BPFFS is the BPF file system in which the daemon pins.
func (g *Gateway) BPFFS() string { return g.path(bpfDir) }

// WaitingSocket is the path of the status socket of a process that waits.
func (g *Gateway) WaitingSocket() string {
	return g.path(filepath.Join(stateDir, config.WaitingSocketFile))
}

// Configuration is the gateway's configuration as New wrote it.
func (g *Gateway) Configuration() string {
	var b strings.Builder
	b.WriteString("# Fields that are not here have their default: sluice config defaults\n" +
		"apiVersion: sluice.dev/v1alpha1\nkind: GatewayConfiguration\n")
	fmt.Fprintf(&b, "nodeName: %s\ninterfaces:\n", g.config.NodeName)
	for _, i := range g.config.Interfaces {
		fmt.Fprintf(&b, "- name: %s\n", i)
	}
	fmt.Fprintf(&b, "manifests: {directory: %s}\nstateDir: %s\nbpfFS: %s\n", g.Manifests(), g.path(stateDir),
		g.path(bpfDir))
	if !strings.Contains(g.config.Options, "drain:") {
		b.WriteString("drain: {timeout: 100ms}\n") // flows that nobody uses any more would keep Stop waiting
	}
	b.WriteString(g.config.Options)
	return b.String()
}

// WriteConfiguration replaces the configuration file; a running daemon reloads it.
func (g *Gateway) WriteConfiguration(text string) error {
	return replace(g.ConfigFile(), []byte(text))
}

// replace writes a file as editors and kubelets do: beside it, and then over it in
// one step. The temporary name begins with a dot, so nobody reads it.
func replace(path string, text []byte) error {
	next := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".next")
	if err := os.WriteFile(next, text, 0o644); err != nil {
		return err
	}
	return os.Rename(next, path)
}
