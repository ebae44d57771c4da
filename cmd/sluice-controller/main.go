// Command sluice-controller gives Services of type LoadBalancer their addresses, from AddressPools.
// See package allocate. It is no part of a gateway, and gateways run without it.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"sluice.dev/sluice/control/allocate"
	"sluice.dev/sluice/internal/kubeconfig"
)

// version is written by the linker.
var version = "unknown"

type flags struct {
	kubeconfig, listen, logFormat string
	allocate.Config
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "sluice-controller:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use: "sluice-controller", Short: "Give Services of type LoadBalancer their addresses", Version: version,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c.Context()) },
	}
	p := c.Flags()
	p.StringVar(&f.kubeconfig, "kubeconfig", "", "file with the API server; empty: the pod's service account")
	p.StringVar(&f.Namespace, "namespace", os.Getenv("POD_NAMESPACE"), "of the Lease; by default $POD_NAMESPACE")
	p.StringVar(&f.Lease, "lease", "sluice-controller", "name of the Lease by which one of several processes leads")
	p.DurationVar(&f.LeaseDuration, "lease-duration", 15*time.Second, "how long others wait for a silent leader")
	p.StringVar(&f.Class, "class", "sluice.dev/sluice", "spec.loadBalancerClass of the Services to serve")
	p.BoolVar(&f.Default, "default-class", true, "serve Services without a loadBalancerClass, too")
	p.BoolVar(&f.MetalLB, "metallb-pools", true, "read IPAddressPools of metallb.io, too, where they are installed")
	p.StringVar(&f.listen, "listen", ":9471", "address of /metrics and /healthz; empty: none")
	p.StringVar(&f.logFormat, "log", "json", "format of the log: json or text")
	return c
}

// minLease leaves room for several renewals.
const minLease = time.Second

func (f *flags) validate() error {
	var errs []error
	if f.Namespace == "" {
		errs = append(errs, errors.New("--namespace is empty: name the namespace of the Lease, or set POD_NAMESPACE"))
	}
	if f.LeaseDuration < minLease {
		errs = append(errs, fmt.Errorf("--lease-duration is %v: must be %v at least", f.LeaseDuration, minLease))
	}
	if f.logFormat != "json" && f.logFormat != "text" {
		errs = append(errs, fmt.Errorf("--log is %q: must be json or text", f.logFormat))
	}
	return errors.Join(errs...)
}

func (f *flags) run(ctx context.Context) (err error) {
	if err := f.validate(); err != nil {
		return err
	}
	f.Log = slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if f.logFormat == "text" {
		f.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	klog.SetSlogLogger(f.Log)
	if f.Client, err = kubeconfig.Load(f.kubeconfig, "--kubeconfig"); err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("this machine's name: %w", err)
	}
	f.Identity = host + "_" + rand.Text() // of this process alone
	f.Metrics = &allocate.Metrics{}
	if f.listen != "" {
		if err := f.serve(ctx); err != nil {
			return err
		}
	}
	return allocate.Run(ctx, f.Config)
}

// serve answers /healthz and /metrics until ctx is done.
func (f *flags) serve(ctx context.Context) error {
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(f.Metrics, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	s := &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second}
	context.AfterFunc(ctx, func() { s.Close() })
	go func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			f.Log.Error("metrics and health are not served any more", "error", err)
		}
	}()
	return nil
}
