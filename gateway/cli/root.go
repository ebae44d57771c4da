// Package cli is the command line of sluice: the daemon, and the commands that send requests to it.
// The commands have no logic: they parse flags, call serve/status, config or doctor, and
// print.
//
// Exit codes: 0 success, 1 failure, 2 wrong usage.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/serve/status"
)

// The exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// App has what the commands call.
type App struct {
	// Run is the daemon: it forwards by a configuration file until ctx ends, then
	// drains and leaves the node clean.
	Run func(ctx context.Context, configFile string, takeOver bool) error
	// Reload starts a daemon that takes over from the one that runs, and returns when it has.
	Reload func(ctx context.Context, configFile string) error
	// StartError returns the error with which Run would refuse the host's interfaces; nil if it
	// would start.
	StartError func(*config.Configuration) error
	// Explain explains a packet without a daemon.
	Explain ExplainOffline
	// Cleanup removes what a process left on this node, and returns what that was, also before an
	// error.
	Cleanup  func(*config.Configuration) (removed []string, err error)
	Out, Err io.Writer
}

// usageError is a wrong use that a command finds after flags and arguments were parsed.
type usageError struct{ error }

// Main executes one command line and returns the exit code.
func (a *App) Main(ctx context.Context, args []string) int {
	s := &session{app: a}
	root := s.root()
	root.SetArgs(append([]string{}, args...)) // nil would be the process's own
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(a.Err, "sluice:", objects.Printable(err.Error(), '\n'))
	var usage usageError
	if !s.started || errors.As(err, &usage) {
		fmt.Fprintln(a.Err, "Run `sluice help` for the commands, `sluice COMMAND --help` for one.")
		return exitUsage
	}
	return exitFailure
}

// session is one execution: the flags that every command has.
type session struct {
	app     *App
	socket  string
	format  outputFormat
	started bool // flags and arguments were in order
}

func (s *session) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "sluice",
		Short: "Userspace L4 load balancer for Kubernetes gateway nodes",
		Long: "sluice takes the packets of Kubernetes Services off the NIC before the kernel sees them,\n" +
			"and sends them on to backends. `sluice run` is the daemon, and most others ask it.",
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			s.started = true
			return s.checkUsed(c)
		},
		Args:              cobra.NoArgs,
		RunE:              func(c *cobra.Command, _ []string) error { return c.Help() },
		Version:           status.ThisBuild().Version,
		DisableAutoGenTag: true,
	}
	root.SetOut(s.app.Out)
	root.SetErr(s.app.Err)
	s.format = formatTable
	root.PersistentFlags().StringVar(&s.socket, "socket", config.Default().StatusSocket(),
		"status socket of the daemon")
	root.PersistentFlags().VarP(&s.format, "output", "o", "output format: table, json or yaml")
	must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"},
		cobra.ShellCompDirectiveNoFileComp)))
	root.AddCommand(
		s.runCommand(), s.configCommand(),
		s.servicesCommand(), s.announceCommand(), s.backendsCommand(), s.flowsCommand(), s.explainCommand(),
		s.drainCommand(), s.undrainCommand(),
		s.statsCommand(), s.statusCommand(), s.probeCommand(), s.doctorCommand(), s.cleanupCommand(),
		s.versionCommand(),
	)
	suggestNames(root)
	return root
}

// one is cobra.ExactArgs(1) with an error that has the usage line.
func one(c *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	return fmt.Errorf("%s takes one argument, not %d: %s", c.Name(), len(args), c.UseLine())
}

// ask calls f with a client.
func (s *session) ask(f func(*status.Client) error) error {
	return f(status.NewClient(s.socket))
}

// must panics on an error that only a change of this package can cause.
func must(err error) {
	if err != nil {
		panic("cli: a command is put together wrongly: " + err.Error())
	}
}
