// Package cli implements the commands of sluice: the daemon, and the commands that send requests to
// it. Commands parse flags, call serve/status, config or doctor, and print; they have no other
// logic.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/internal/usage"
	"sluice.dev/sluice/serve/status"
)

// App has the functions and outputs that the commands use.
type App struct {
	// Run is the daemon. It forwards packets by a configuration file until ctx ends, then drains
	// and cleans the node.
	Run func(ctx context.Context, configFile string, takeOver bool) error
	// Reload starts a daemon that takes over from the running one, and returns when it has.
	Reload func(ctx context.Context, configFile string) error
	// StartError returns the error with which Run would fail on the host's interfaces; nil if it
	// would start.
	StartError func(*config.Configuration) error
	// Explain explains a packet without a daemon.
	Explain ExplainOffline
	// Simulate runs captured packets through a configuration without a daemon.
	Simulate Simulate
	// Cleanup removes a process's state from this node. It returns the names of the removed parts,
	// even with an error.
	Cleanup func(*config.Configuration) (removed []string, err error)
	// Node has the commands about a node with endpoints.
	Node     NodeCommands
	Out, Err io.Writer
	// In is the standard input; nil: there is none.
	In *os.File

	// terminal returns the size of Out's terminal, 0 if Out is none. nil: query Out. Tests replace
	// it.
	terminal func() (width, height int)
}

// usageError is a wrong use that a command finds after the flags and arguments were parsed.
type usageError struct{ error }

// Main executes one command line and returns the exit code.
func (a *App) Main(ctx context.Context, args []string) int {
	s := &session{app: a}
	root := s.root()
	root.SetArgs(append([]string{}, args...)) // with nil, cobra reads os.Args
	code, err := usage.Execute(ctx, root)
	if err == nil {
		return code
	}
	fmt.Fprintln(a.Err, "sluice:", objects.Printable(err.Error(), '\n'))
	var wrong usageError
	if code == usage.Wrong || errors.As(err, &wrong) {
		fmt.Fprintln(a.Err, "Run `sluice help` for a list of commands, or `sluice COMMAND --help` for one command.")
		return usage.Wrong
	}
	var gate gateError
	if errors.As(err, &gate) {
		return usage.Findings
	}
	return code
}

// session is one execution of a command line, with the flags that all commands share.
type session struct {
	app    *App
	socket string
	format outputFormat

	// out and notes are the app's Out and Err, or, with --watch, a page that is shown at once.
	out, notes io.Writer
	page       int // with --watch: 1 for the first; 0 without
}

// Command returns the command line with all commands, for its manual pages. Its defaults do not
// depend on the host.
func Command() *cobra.Command {
	root := (&session{app: &App{}}).root()
	root.PersistentFlags().Lookup("socket").DefValue = config.Default().StatusSocket()
	return root
}

func (s *session) root() *cobra.Command {
	s.out, s.notes = s.app.Out, s.app.Err
	root := &cobra.Command{
		Use:   "sluice",
		Short: "Userspace L4 load balancer for Kubernetes gateway nodes",
		Long: "sluice receives the packets of Kubernetes Services from the NIC before the kernel does, and\n" +
			"forwards them to backends. `sluice run` is the daemon; most other commands send it requests.",
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error { return s.checkUsed(c) },
		Args:              cobra.NoArgs,
		RunE:              func(c *cobra.Command, _ []string) error { return c.Help() },
		Version:           status.ThisBuild().Version,
		DisableAutoGenTag: true,
	}
	root.SetOut(s.app.Out)
	root.SetErr(s.app.Err)
	s.format = formatTable
	root.PersistentFlags().StringVar(&s.socket, "socket", defaultSocket(config.Default()),
		"status socket of the daemon")
	root.PersistentFlags().VarP(&s.format, "output", "o", "output format: table, wide (with all columns), json or yaml")
	must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputFormats,
		cobra.ShellCompDirectiveNoFileComp)))
	root.AddCommand(
		s.runCommand(), s.configCommand(),
		s.servicesCommand(), s.announceCommand(), s.backendsCommand(), s.flowsCommand(), s.explainCommand(),
		s.captureCommand(), s.simulateCommand(), s.whoCommand(), s.drainCommand(), s.undrainCommand(),
		s.denyCommand(), s.eventsCommand(), s.topCommand(), s.uiCommand(), s.dropsCommand(), s.statsCommand(),
		s.statusCommand(), s.probeCommand(), s.doctorCommand(), s.supportCommand(), s.cleanupCommand(), s.nodeCommand(),
		s.versionCommand(), usage.ExitCodesTopic(),
	)
	usage.Suggest(root)
	return root
}

// defaultSocket returns the socket of a daemon that this user may open: the one that answers every
// request, or the one for readers.
func defaultSocket(c *config.Configuration) string {
	full, readers := c.StatusSocket(), c.Readers.Socket
	if unix.Access(full, unix.W_OK) != nil && unix.Access(readers, unix.W_OK) == nil {
		return readers
	}
	return full
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

// must panics on an error that only a mistake in this package can cause.
func must(err error) {
	if err != nil {
		panic("cli: a command is defined wrongly: " + err.Error())
	}
}
