// Command sluice-controller gives Services of type LoadBalancer addresses from AddressPools. See
// package allocate. Gateways do not need it to forward.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"sluice.dev/sluice/allocate"
	"sluice.dev/sluice/config/metallb/metallbflag"
	"sluice.dev/sluice/host/sdnotify"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/kubeconfig"
	"sluice.dev/sluice/internal/logs"
	"sluice.dev/sluice/internal/usage"
	"sluice.dev/sluice/serve/metricsserver"
)

// version is written by the linker.
var version = "unknown"

type flags struct {
	kubeconfig, listen, logFormat string
	metallb                       bool
	allocate.Config
	beats heartbeat.Set
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	code, err := usage.Execute(ctx, command())
	if err != nil {
		fmt.Fprintln(logs.Stderr, "sluice-controller:", err)
	}
	logs.Stderr.Flush(logs.FlushTimeout)
	os.Exit(code)
}

func command() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use: "sluice-controller", Short: "Give Services of type LoadBalancer their addresses", Version: version,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		PreRunE: func(*cobra.Command, []string) error {
			logs.Queue()
			return f.check()
		},
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c.Context()) },
	}
	p := c.Flags()
	p.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file; empty: the pod's service account")
	p.StringVar(&f.Namespace, "namespace", os.Getenv("POD_NAMESPACE"), "of the Lease; by default $POD_NAMESPACE")
	p.StringVar(&f.Lease, "lease", "sluice-controller", "name of the Lease by which one of several processes leads")
	p.DurationVar(&f.LeaseDuration, "lease-duration", 15*time.Second, "how long others wait for a silent leader")
	p.StringVar(&f.Class, "class", "sluice.dev/sluice", "spec.loadBalancerClass of the Services to serve")
	p.BoolVar(&f.Default, "default-class", true, "also serve Services without a loadBalancerClass")
	p.BoolVar(&f.metallb, "metallb-pools", true, "also read IPAddressPools of metallb.io, if they are installed")
	p.StringVar(&f.MetalLB, metallbflag.Name, metallbflag.Default, "MetalLB's namespace: only IPAddressPools in it "+
		"are read")
	p.StringVar(&f.listen, "listen", ":9471", "address of /metrics, /healthz and /readyz; empty: none")
	p.StringVar(&f.logFormat, "log", "json", "format of the log: json or text")
	usage.Suggest(c)
	return c
}

// minLease leaves room for several renewals.
const minLease = time.Second

// check opens the log and returns the errors in all other flags.
func (f *flags) check() error {
	var errs []error
	if f.Namespace == "" {
		errs = append(errs, errors.New("--namespace is empty: name the namespace of the Lease, or set POD_NAMESPACE"))
	}
	var err error
	if f.MetalLB, err = metallbflag.Check(f.MetalLB, f.metallb, "metallb-pools"); err != nil {
		errs = append(errs, err)
	}
	if f.LeaseDuration < minLease {
		errs = append(errs, fmt.Errorf("--lease-duration is %v: must be %v at least", f.LeaseDuration, minLease))
	}
	if f.Log, err = logs.New(f.logFormat); err != nil {
		errs = append(errs, fmt.Errorf("--log %w", err))
	}
	return errors.Join(errs...)
}

func (f *flags) run(ctx context.Context) (err error) {
	klog.SetSlogLogger(f.Log)
	if f.Client, err = kubeconfig.Load(f.kubeconfig, "--kubeconfig"); err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("this machine's name: %w", err)
	}
	f.Identity = host + "_" + rand.Text() // unique to this process
	f.Metrics, f.Beats = &allocate.Metrics{}, &f.beats
	if f.listen != "" {
		if err := metricsserver.Start(ctx, f.listen, f.Log, f.Beats, f.Metrics.NotReady, f.Metrics); err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
	}
	go sdnotify.Run(ctx, sdnotify.Config{Log: f.Log, Dead: f.beats.Dead})
	return allocate.Run(ctx, f.Config)
}
