package cli

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/gateway/doctor"
	"sluice.dev/sluice/serve/status"
)

func (s *session) runCommand() *cobra.Command {
	var file string
	var takeOver, background bool
	c := &cobra.Command{
		Use:   "run --config FILE",
		Short: "Run the daemon: forward packets until SIGTERM",
		Long: "run is the daemon. It forwards packets by the configuration file, and reloads the file when it\n" +
			"changes or on SIGHUP. SIGTERM drains and cleans the node; a second SIGTERM ends the daemon at once.\n" +
			"With --take-over it takes sockets and flows from the running daemon and continues without losing a\n" +
			"packet. If the running daemon refuses, run logs the reason and waits until that daemon ends.\n" +
			"With --take-over --background the new daemon is a separate process, and run ends when it has taken\n" +
			"over; if the running daemon refuses, the new one ends. Use it as a service manager's reload command.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if file == "" {
				return usageError{fmt.Errorf("run needs --config FILE; `sluice config defaults` prints a file to " +
					"start from")}
			}
			if background && !takeOver {
				return usageError{errors.New("--background needs --take-over: a service manager starts the daemon " +
					"without it")}
			}
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			go func() {
				<-ctx.Done()
				stop() // a second signal has its default effect
			}()
			if background {
				return listed(s.app.Reload(ctx, file))
			}
			return listed(s.app.Run(ctx, file, takeOver))
		},
	}
	c.Flags().StringVar(&file, "config", "", "configuration file (required)")
	c.Flags().BoolVar(&takeOver, "take-over", false, "take over from the running daemon, if there is one")
	c.Flags().BoolVar(&background, "background", false, "with --take-over: end when the new daemon has taken over")
	must(c.MarkFlagFilename("config", "yaml", "yml", "json"))
	return c
}

func (s *session) configCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration file, print defaults or a schema, or convert kube-proxy's or MetalLB's",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usageError{fmt.Errorf("config needs one of: check FILE, defaults, schema, from-kube-proxy FILE, " +
				"from-metallb FILE")}
		},
	}
	var host bool
	check := &cobra.Command{
		Use:   "check FILE",
		Short: "List all errors of a configuration file",
		Args:  one,
		RunE:  func(c *cobra.Command, args []string) error { return s.checkConfig(c.Context(), args[0], host) },
	}
	check.Flags().BoolVar(&host, "host", false,
		"also check this host: interfaces, CPUs, ports, directories, and the checks of doctor for interfaces")
	defaults := &cobra.Command{
		Use:   "defaults",
		Short: "Print every field with its default and its meaning",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if s.format == formatJSON {
				return s.print(config.Default(), nil)
			}
			_, err := s.app.Out.Write(config.DefaultsYAML())
			return err
		},
	}
	schema := &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of a configuration file, for editors",
		Long: "schema prints the JSON Schema (draft 7) of a configuration file: fields with their defaults, bounds\n" +
			"and meaning. An editor with the YAML language server reads it from a file that the first line of the\n" +
			"configuration names. `sluice config check` checks more.",
		Example: "  sluice config schema > schema.json\n" +
			"  sed -i '1i # yaml-language-server: $schema=schema.json' gateway.yaml",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := s.app.Out.Write(config.Schema())
			return err
		},
	}
	c.AddCommand(check, defaults, schema, s.fromKubeProxyCommand(), s.fromMetalLBCommand())
	return c
}

// checkConfig prints "ok" or, as JSON or YAML, the configuration with all defaults.
func (s *session) checkConfig(ctx context.Context, file string, host bool) error {
	load := config.LoadAnyOwner // any user may write it: the daemon may run on another machine, or file may be a pipe
	if host {
		load = config.Load
	}
	cfg, err := load(file)
	if err != nil {
		return listed(err)
	}
	done := file + ": ok"
	if host {
		h, err := config.ReadHost()
		if err != nil {
			return err
		}
		if err := cfg.CheckHost(file, h); err != nil {
			return listed(err)
		}
		doubts, err := s.checkInterfaces(ctx, file)
		if err != nil {
			return err
		}
		if doubts > 0 {
			done += fmt.Sprintf("; %s about its interfaces, which `sluice doctor --config %s` lists",
				plural(doubts, "warning"), file)
		}
	}
	return s.print(cfg, func(r *rows) { r.line(done) })
}

// checkInterfaces runs doctor's checks of the configured interfaces. It returns the failures as an
// error, and the number of warnings.
func (s *session) checkInterfaces(ctx context.Context, file string) (doubts int, err error) {
	facts, err := s.readFacts(ctx, file)
	if err != nil {
		return 0, err
	}
	var failed []string
	for _, f := range doctor.ExamineInterfaces(facts) {
		switch f.Level {
		case doctor.Fail:
			failed = append(failed, fmt.Sprintf("%s: %s: %s: %s; %s", file, f.Subject, f.Check, f.Found, f.Do))
		case doctor.Warn:
			doubts++
		}
	}
	switch len(failed) {
	case 0:
		return doubts, nil
	case 1:
		return 0, errors.New(failed[0])
	}
	return 0, fmt.Errorf("%s\n%s", plural(len(failed), "problem"), strings.Join(failed, "\n"))
}

// listed prints each of several problems on a line of its own.
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
