package usage

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// Exit codes of all programs. ExitCodes describes them.
const (
	OK       = 0
	Failure  = 1
	Wrong    = 2
	Findings = 3 // the command has worked, and a pipeline may stop at its result
)

// ExitCode is the meaning of an exit code.
type ExitCode struct {
	Code int
	// Of are the commands for which the code has this meaning; empty: all commands.
	Of, Meaning string
}

// ExitCodes lists the exit codes: the meaning for all commands, then for commands that scripts ask.
var ExitCodes = []ExitCode{
	{OK, "", "success; also after ^C where a command goes on until then"},
	{Failure, "", "failure; standard error has the reason"},
	{Wrong, "", "wrong usage: unknown command, flag or value; nothing was done"},
	{Failure, "sluice run", "the daemon could not start, or has failed; after SIGTERM it is 0"},
	{Failure, "sluice config check", "the file has an error"},
	{Failure, "sluice doctor, sluice node check", "a check failed; with warnings alone it is 0"},
	{Failure, "sluice status --wait", "the configuration is not in force at --timeout"},
	{Findings, "sluice simulate", "the change drops or moves flows, ports run out, or packets exceed the MTU"},
	{Findings, "sluice who", "no flow had the source at that time"},
	{Failure, "sluice probe", "not live, or not ready"},
	{Failure, "sluice-announcer status", "the announcer does not answer, has stalled, or announces nothing yet"},
	{Failure, "kubectl sluice", "a gateway failed or did not answer; the others' answers are printed"},
	{Findings, "kubectl sluice who", "no gateway had a flow with the source at that time"},
}

// ExitCodesTopic returns the help topic about exit codes.
func ExitCodesTopic() *cobra.Command {
	var b strings.Builder
	b.WriteString("Exit codes of sluice, sluice-controller, sluice-announcer and kubectl sluice:\n\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, e := range ExitCodes {
		of := e.Of
		if of == "" {
			of = "all commands"
		}
		fmt.Fprintf(w, "  %d\t%s\t%s\n", e.Code, of, e.Meaning)
	}
	_ = w.Flush() // into memory
	return &cobra.Command{Use: "exit-codes", Short: "Exit codes of all commands", Long: b.String()}
}

// Execute runs a command line. An error before the command itself runs is about its flags and
// arguments, so the exit code is Wrong.
func Execute(ctx context.Context, root *cobra.Command) (code int, err error) {
	started := false
	noteStart(root, &started)
	err = root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return OK, nil
	case started:
		return Failure, err
	}
	return Wrong, err
}

// noteStart sets started when a command, c or one below it, runs.
func noteStart(c *cobra.Command, started *bool) {
	if run := c.RunE; run != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			*started = true
			return run(c, args)
		}
	}
	for _, sub := range c.Commands() {
		noteStart(sub, started)
	}
}
