// Command sluice-announcer announces the VIPs that the gateway on this node serves. See package
// announce. It is a separate process, so that its sessions outlive the gateway's process.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/bgp"
	"sluice.dev/sluice/announce/cluster"
	"sluice.dev/sluice/announce/file"
	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/announce/layer2"
	"sluice.dev/sluice/announce/view"
	"sluice.dev/sluice/config/metallb/metallbflag"
	"sluice.dev/sluice/host/sdnotify"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/kubeconfig"
	"sluice.dev/sluice/internal/logs"
	"sluice.dev/sluice/internal/nodename"
	"sluice.dev/sluice/internal/usage"
	"sluice.dev/sluice/serve/metricsserver"
)

// version is written by the linker.
var version = "unknown"

type flags struct {
	config, node, gateway, stateDir string
	kubeconfig, namespace           string
	secrets                         []string
	metallb                         bool
	metallbNamespace                string
	hold, drainDelay                time.Duration
	routerID, listen, logFormat     string
	layer2                          layer2.Config
	log                             *slog.Logger
	beats                           heartbeat.Set
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	code, err := usage.Execute(ctx, command())
	if err != nil {
		fmt.Fprintln(logs.Stderr, "sluice-announcer:", err)
	}
	logs.Stderr.Flush(logs.FlushTimeout)
	os.Exit(code)
}

func command() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use: "sluice-announcer", Short: "Announce the VIPs that the gateway on this node serves", Version: version,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		PreRunE: func(*cobra.Command, []string) error {
			logs.Queue()
			return f.check()
		},
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c.Context()) },
	}
	p := c.Flags()
	p.StringVar(&f.config, "config", "", "file with the objects that control announcements (pools, peers, "+
		"advertisements); empty: read them from the API server")
	p.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file; empty: the pod's service account")
	p.StringVar(&f.namespace, "namespace", os.Getenv("POD_NAMESPACE"),
		"namespace of the Secrets with passwords; by default $POD_NAMESPACE; empty: none are read")
	p.StringSliceVar(&f.secrets, "password-secrets", nil, "names of the Secrets with passwords; no others are read")
	p.BoolVar(&f.metallb, "metallb-objects", true, "also read objects of metallb.io, if they are installed")
	p.StringVar(&f.metallbNamespace, metallbflag.Name, metallbflag.Default,
		"MetalLB's namespace: only objects in it are read")
	p.StringVar(&f.node, "node-name", os.Getenv("SLUICE_NODE_NAME"),
		"this node; by default $SLUICE_NODE_NAME, or the host name")
	p.StringVar(&f.gateway, "gateway", "/run/sluice/pulse/pulse.sock",
		"socket of the gateway: pulse/pulse.sock in its stateDir")
	p.StringVar(&f.stateDir, "state-dir", filepath.Dir(view.DefaultSocket), "directory of the status socket and of "+
		"the state that the next process reads")
	p.DurationVar(&f.hold, "hold", announce.DefaultHold,
		"how long routes stay after the gateway's process has ended: a budget, of which six seconds of forwarding "+
			"restore one second; 0: routes are withdrawn at once")
	p.DurationVar(&f.drainDelay, "drain-delay", announce.DefaultDrainDelay,
		"how long an excluded or deleted node announces its routes as leaving before it withdraws them")
	p.StringVar(&f.routerID, "router-id", "", "BGP identifier, an IPv4 address; by default the Node's internal "+
		"address, else the local address towards the first peer, else a hash of the node's name")
	p.StringVar(&f.layer2.KeyFile, "layer2-key", "", "file with the keys that the gateways of a link share, one per "+
		"line, the first one signs; empty: nothing is announced at layer 2")
	p.DurationVar(&f.layer2.Every, "layer2-hello", layer2.DefaultEvery,
		"interval of the hellos between gateways of a link; the same on all")
	p.IntVar(&f.layer2.Silent, "layer2-silent", layer2.DefaultSilent,
		"how many hellos in a row must be missing before a gateway counts as dead; the same on all")
	p.DurationVar(&f.layer2.JoinTime, "layer2-join", layer2.DefaultJoinTime,
		"how long a gateway that starts takes no VIP of layer 2, and its VIPs are kept for it once it is heard "+
			"again; the same on all")
	p.DurationVar(&f.layer2.Return, "layer2-return", layer2.DefaultReturn,
		"how long the VIPs of a gateway that forwards, but whose announcer ended, are kept for its next announcer; "+
			"0: not at all; the same on all")
	p.StringVar(&f.listen, "listen", "127.0.0.1:9472", "address of /metrics, /healthz and /readyz; empty: none")
	p.StringVar(&f.logFormat, "log", "json", "format of the log: json or text")
	c.AddCommand(status())
	usage.Suggest(c)
	return c
}

func status() *cobra.Command {
	var socket string
	var live bool
	c := &cobra.Command{Use: "status", Short: "Print the peers to which each VIP is announced, or why it is not",
		Long: "status prints the peers to which each VIP is announced, or why it is not. It fails if the announcer\n" +
			"does not answer, if one of its loops has stalled, or if it announces nothing because it waits for\n" +
			"objects or for the gateway. The pod's probes run it.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			v, err := view.Ask(c.Context(), socket)
			if errors.Is(err, view.ErrNotRunning) {
				return fmt.Errorf("%w Name its socket with --socket", err)
			}
			if err != nil {
				return err
			}
			if err := view.Print(c.OutOrStdout(), v); err != nil {
				return err
			}
			switch {
			case len(v.Stalled) > 0:
				return errors.New("the announcer has stalled: " + strings.Join(v.Stalled, "; "))
			case !live && len(v.NotReady()) > 0:
				return errors.New("the announcer is not ready: " + strings.Join(v.NotReady(), "; "))
			}
			return nil
		}}
	c.Flags().StringVar(&socket, "socket", view.DefaultSocket, "status socket of the announcer")
	c.Flags().BoolVar(&live, "live", false, "do not fail while the announcer waits: a restart does not help")
	return c
}

// check opens the log and returns the errors in all other flags.
func (f *flags) check() error {
	var errs []error
	if f.hold < 0 || f.hold > announce.MaxHold {
		errs = append(errs, fmt.Errorf("--hold is %v: must be from 0 to %v, after which the kernel gets the packets "+
			"of a gateway that is away", f.hold, announce.MaxHold))
	}
	var err error
	if f.metallbNamespace, err = metallbflag.Check(f.metallbNamespace, f.metallb, "metallb-objects"); err != nil {
		errs = append(errs, err)
	}
	if f.drainDelay < 0 {
		errs = append(errs, fmt.Errorf("--drain-delay is %v: must be 0 or more", f.drainDelay))
	}
	if f.log, err = logs.New(f.logFormat); err != nil {
		errs = append(errs, fmt.Errorf("--log %w", err))
	}
	if err := f.layer2.Check(); err != nil {
		errs = append(errs, fmt.Errorf("--layer2-hello, --layer2-silent, --layer2-join, --layer2-return: %w", err))
	}
	if f.routerID != "" {
		if a, err := netip.ParseAddr(f.routerID); err != nil || !a.Is4() {
			errs = append(errs, fmt.Errorf("--router-id is %q: must be an IPv4 address", f.routerID))
		}
	}
	return errors.Join(errs...)
}

func (f *flags) run(ctx context.Context) (err error) {
	if f.node == "" {
		if f.node, err = nodename.Host(); err != nil {
			return fmt.Errorf("--node-name is not set, and %w", err)
		}
	}
	if err := os.MkdirAll(f.stateDir, 0o700); err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	l, err := view.Listen(filepath.Join(f.stateDir, "status.sock"))
	if err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	defer l.Close()
	if f.config != "" {
		source, err := file.New(f.config, f.node, f.log, &f.beats)
		if err != nil {
			return fmt.Errorf("--config: %w", err)
		}
		return f.announce(ctx, source, nil, l)
	}
	klog.SetSlogLogger(f.log)
	client, err := kubeconfig.Load(f.kubeconfig, "--kubeconfig")
	if err != nil {
		return err
	}
	source, err := cluster.New(cluster.Config{Client: client, Log: f.log, Node: f.node,
		NodeSeen: announce.NodeSeen(f.state(), f.node), Namespace: f.namespace, Secrets: f.secrets,
		MetalLB: f.metallbNamespace, Beats: &f.beats})
	if err != nil {
		return err
	}
	return f.announce(ctx, source, source.Report, l)
}

// state is the file for the next process.
func (f *flags) state() string { return filepath.Join(f.stateDir, "announced.json") }

// announce runs until ctx is done.
func (f *flags) announce(
	ctx context.Context, source announce.Source, report func(kinds.Problem, bool), l net.Listener,
) error {
	c := announce.Config{Report: report, Log: f.log, Version: version, Source: source, Gateway: f.gateway, Hold: f.hold,
		State: f.state(), DrainDelay: f.drainDelay, Beats: &f.beats}
	resumed := announce.Resumes(c.State)
	id, _ := netip.ParseAddr(f.routerID) // check has parsed it; not valid if empty
	f.layer2.Log, f.layer2.Name, f.layer2.Beats = f.log, f.node, &f.beats
	link, err := layer2.New(f.layer2)
	if err != nil {
		return fmt.Errorf("--layer2-key: %w", err)
	}
	c.Speakers = []announce.Speaker{bgp.New(bgp.Config{Log: f.log, RouterID: id, Restarting: resumed}), link}
	loop := announce.New(c)
	if f.listen != "" {
		waiting := func() []string { return loop.View().NotReady() }
		if err := metricsserver.Start(ctx, f.listen, f.log, &f.beats, waiting, announce.Metrics{View: loop.View},
			link); err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
	}
	go view.Serve(ctx, l, loop.View, f.log)
	go sdnotify.Run(ctx, sdnotify.Config{Log: f.log, Dead: f.beats.Dead})
	f.log.Info("announcing", "node", f.node, "hold", f.hold, "resumed", resumed)
	loop.Run(ctx)
	return nil
}
