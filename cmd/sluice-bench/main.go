// Command sluice-bench is the laboratory: demonstrations and measurements of the
// gateway on networks that it builds itself. It is not part of a deployment.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/bench/demo"
	"sluice.dev/sluice/control/status"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second ^C does what it does by default
	root := &cobra.Command{
		Use:           "sluice-bench",
		Short:         "Demonstrations and measurements of the Sluice gateway",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		Version:       status.ThisBuild().Version,
	}
	root.AddCommand(compareCommand(), demoCommand(), gapsCommand(), pipelineCommand(), tuesdayCommand(), updatesCommand(), l2fwdCommand(), statefulCommand(), benchCommand(), reportCommand(), statelessCommand(), rfc2544Command())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "sluice-bench:", err)
		stop()
		os.Exit(1)
	}
}

func demoCommand() *cobra.Command {
	c := demo.Config{Out: os.Stdout}
	command := &cobra.Command{
		Use:   "demo",
		Short: "Build a network, run the gateway in it, send traffic, judge what happened",
		Long: "demo builds client, gateway and backend network namespaces, runs `sluice run` in the gateway's,\n" +
			"sends real traffic through it, changes endpoints, kills it, and says what happened. The exit\n" +
			"status is 0 only if every expectation was met. It needs Linux 6.6, root, and no other tool.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return demo.Run(cmd.Context(), c) },
	}
	command.Flags().StringVar(&c.Sluice, "sluice", besideMe("sluice"), "the sluice binary")
	command.Flags().BoolVar(&c.Keep, "keep", false, "leave everything standing until ^C, with things to try")
	command.Flags().BoolVar(&c.Short, "short", false, "less of everything")
	return command
}

// besideMe is the path of another program in this program's directory.
func besideMe(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(self), name)
}
