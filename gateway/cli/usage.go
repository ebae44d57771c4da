package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sluice.dev/sluice/internal/wording"
)

// suggestNames adds the nearest known name to errors about unknown commands, flags and fixed
// arguments, for c and all commands below it.
func suggestNames(c *cobra.Command) {
	c.SetFlagErrorFunc(flagError)
	for _, sub := range c.Commands() {
		suggestNames(sub)
	}
	if accepts := c.Args; c.HasSubCommands() || len(c.ValidArgs) > 0 {
		c.Args = func(c *cobra.Command, args []string) error {
			err := accepts(c, args)
			if err == nil || len(args) == 0 {
				return err
			}
			known := slices.Clone(c.ValidArgs)
			for _, sub := range c.Commands() {
				known = append(append(known, sub.Name()), sub.Aliases...)
			}
			return didYouMeanName(err, args[0], "", known)
		}
	}
}

// flagError adds the nearest flag to the error about an unknown flag.
func flagError(c *cobra.Command, err error) error {
	_, name, found := strings.Cut(err.Error(), "unknown flag: --")
	if !found {
		return err
	}
	var known []string
	c.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
	return didYouMeanName(err, name, "--", known)
}

func didYouMeanName(err error, name, prefix string, known []string) error {
	if best := wording.Nearest(name, known); best != "" {
		return fmt.Errorf("%w; did you mean %s%s?", err, prefix, best)
	}
	return err
}

// checkUsed returns an error for a flag that the command would ignore although the user may expect
// an effect. Commands that contact no daemon accept --socket, so that a shell alias may contain it.
func (s *session) checkUsed(c *cobra.Command) error {
	path := strings.TrimPrefix(c.CommandPath(), "sluice ")
	given := func(flag string) bool { f := c.Flag(flag); return f != nil && f.Changed }
	if given("socket") {
		switch path {
		case "announce":
			if !given("announcer") {
				return usageError{errors.New("--socket is the gateway's socket, and announce asks the announcer: " +
					"give its socket with --announcer")}
			}
		case "run", "cleanup":
			return usageError{fmt.Errorf("%s has no --socket: the daemon's socket is status.sock in the stateDir "+
				"of its configuration", path)}
		}
	}
	if given("output") && !s.format.text() && (path == "run" || path == "probe" || path == "capture") {
		return usageError{fmt.Errorf("%s prints no result and has no --output", path)}
	}
	if path == "status" && given("timeout") && !given("wait") {
		return usageError{errors.New("--timeout bounds --wait: also give --wait")}
	}
	return nil
}
