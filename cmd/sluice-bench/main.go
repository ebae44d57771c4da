// Command sluice-bench is the laboratory: demonstrations and measurements of the
// gateway on networks that it builds itself. It is not part of a deployment.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/bench/demo"
	"sluice.dev/sluice/internal/usage"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/isolate"
	"sluice.dev/sluice/test/vm"
	"sluice.dev/sluice/test/vm/pid1"
)

func main() {
	if pid1.Called() { // in a guest of `sluice-bench vm`
		pid1.Main()
	}
	if isolate.Called() { // in the namespaces of `sluice-bench isolate`
		isolate.Main()
	}
	ctx, stop := signal.NotifyContext(whileRead(context.Background()), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second ^C ends the process
	code, err := usage.Execute(ctx, rootCommand())
	if err != nil {
		fmt.Fprintln(os.Stderr, "sluice-bench:", explained(ctx, err))
		stop()
	}
	var inGuest *vm.ExitError
	if errors.As(err, &inGuest) {
		code = inGuest.Status
	}
	os.Exit(code)
}

// whileRead returns a context that ends when the reader of this program's output, a pager or head,
// is gone: by default SIGPIPE would end the program without removing its networks. Broken
// connections also raise SIGPIPE, so after each signal it checks whether the output has a reader.
func whileRead(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE) // stays in force, because the clean-up also writes to the output
	go func() {
		defer cancel()
		for range broken {
			if unread(os.Stdout) || unread(os.Stderr) {
				return
			}
		}
	}()
	return ctx
}

// unread reports whether a file is a pipe without a reader (poll(2), POLLERR).
func unread(f *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(f.Fd())}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1 && fds[0].Revents&unix.POLLERR != 0
}

// explained returns the message for an error. After a signal all errors are consequences of it, and
// their texts depend on the interrupted operation: "context canceled", "signal: killed".
func explained(ctx context.Context, err error) string {
	text := strings.TrimSpace(err.Error())
	switch {
	case ctx.Err() == nil || strings.HasPrefix(text, "interrupted"):
		return text
	case text == context.Canceled.Error():
		return "interrupted"
	}
	return "interrupted: " + text
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "sluice-bench",
		Short:         "Demonstrations and measurements of the Sluice gateway",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		Version:       status.ThisBuild().Version,
		// The files may be written only after hours.
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			return errors.Join(canWrite(c, "json"), canWrite(c, "profile"))
		},
	}
	root.AddCommand(clusterCommand(), compareCommand(), tailCommand(), demoCommand(),
		demoVIPCommand(),
		pipelineCommand(), stepsCommand(),
		rolloutCommand(), updatesCommand(), l2fwdCommand(), statefulCommand(), benchCommand(), reportCommand(),
		soakCommand(), statelessCommand(), rfc2544Command(), vmCommand(), isolateCommand())
	usage.Suggest(root)
	return root
}

// canWrite returns an error if the command has the flag and the file that it names cannot be
// written. It creates no file.
func canWrite(c *cobra.Command, flag string) error {
	f := c.Flags().Lookup(flag)
	if f == nil || f.Value.Type() != "string" || f.Value.String() == "" {
		return nil
	}
	path := f.Value.String()
	where := path
	switch at, err := os.Stat(path); {
	case err == nil && at.IsDir():
		return fmt.Errorf("--%s %s: is a directory, name a file", flag, path)
	case err != nil:
		where = filepath.Dir(path)
		if at, err := os.Stat(where); err != nil || !at.IsDir() {
			return fmt.Errorf("--%s %s: there is no directory %s, create it or name another file", flag, path, where)
		}
	}
	if err := unix.Access(where, unix.W_OK); err != nil {
		return fmt.Errorf("--%s %s: %w, name a file that may be written", flag, path, err)
	}
	return nil
}

func demoCommand() *cobra.Command {
	c := demo.Config{Out: os.Stdout}
	command := &cobra.Command{
		Use:   "demo",
		Short: "Build a network, run the gateway in it, send traffic, and check the results",
		Long: "demo builds client, gateway and backend network namespaces, runs `sluice run` in the gateway's,\n" +
			"sends real traffic through it, changes endpoints, kills it, and prints the results. The exit\n" +
			"status is 0 only if every expectation was met. It needs Linux 6.12, root, and no other tool.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return demo.Run(cmd.Context(), c) },
	}
	command.Flags().StringVar(&c.Sluice, "sluice", besideMe("sluice"), "the sluice binary")
	command.Flags().BoolVar(&c.Keep, "keep", false, "keep the network until ^C, with commands to try")
	command.Flags().BoolVar(&c.Short, "short", false, "smaller numbers of everything")
	command.Flags().IntVar(&c.Patience, "patience", 1,
		"multiplies every time limit, for a slow machine such as an emulated one")
	return command
}

// besideMe returns the path of another program in this program's directory.
func besideMe(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(self), name)
}
