package cli

import (
	"errors"
	"fmt"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/control/status"
)

func (s *session) runCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "run --config FILE",
		Short: "Forward until SIGTERM",
		Long: "run is the daemon. It forwards by the configuration file and reloads it when it changes\n" +
			"or on SIGHUP. SIGTERM drains and leaves the node clean; a second one ends it at once.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if file == "" {
				return usageError{fmt.Errorf("run needs --config FILE; `sluice config defaults` prints one to start from")}
			}
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			go func() {
				<-ctx.Done()
				stop() // from here on a signal does what it does by default
			}()
			return listed(s.app.Run(ctx, file))
		},
	}
	c.Flags().StringVar(&file, "config", "", "configuration file (required)")
	must(c.MarkFlagFilename("config", "yaml", "yml", "json"))
	return c
}

func (s *session) configCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration file, print the defaults, make one from kube-proxy's",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usageError{fmt.Errorf("config needs one of: check FILE, defaults, from-kube-proxy FILE")}
		},
	}
	var host bool
	check := &cobra.Command{
		Use:   "check FILE",
		Short: "Name every problem of a configuration file",
		Args:  one,
		RunE:  func(_ *cobra.Command, args []string) error { return s.checkConfig(args[0], host) },
	}
	check.Flags().BoolVar(&host, "host", false, "check also against this host: interfaces, CPUs, ports, directories")
	defaults := &cobra.Command{
		Use:   "defaults",
		Short: "Print every field with its default and what it means",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if s.format == formatJSON {
				return s.print(config.Default(), nil)
			}
			_, err := s.app.Out.Write(config.DefaultsYAML())
			return err
		},
	}
	c.AddCommand(check, defaults, s.fromKubeProxyCommand())
	return c
}

// checkConfig prints the configuration with all defaults for programs, one line for people.
func (s *session) checkConfig(file string, host bool) error {
	cfg, err := config.Load(file)
	if err != nil {
		return listed(err)
	}
	if host {
		h, err := config.ReadHost()
		if err != nil {
			return err
		}
		if err := cfg.CheckHost(file, h); err != nil {
			return listed(err)
		}
	}
	return s.print(cfg, func(r *rows) { r.line(file + ": ok") })
}

// listed puts several problems on lines of their own.
func listed(err error) error {
	var errs config.Errors
	if errors.As(err, &errs) && len(errs) > 1 {
		return fmt.Errorf("%d problems\n%w", len(errs), err)
	}
	return err
}

func (s *session) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this command",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			build := status.ThisBuild()
			return s.print(build, func(r *rows) { r.line(build.String()) })
		},
	}
}
