// Package usage has the habits that the command lines of all programs share: the known name that is
// nearest to a misspelt one, and exit codes.
package usage

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sluice.dev/sluice/internal/wording"
)

// Suggest adds the nearest known name to errors about unknown commands, flags and fixed arguments,
// for c and all commands below it.
func Suggest(c *cobra.Command) {
	c.SetFlagErrorFunc(flagError)
	for _, sub := range c.Commands() {
		Suggest(sub)
	}
	if accepts := c.Args; accepts != nil && (c.HasSubCommands() || len(c.ValidArgs) > 0) {
		c.Args = func(c *cobra.Command, args []string) error {
			err := accepts(c, args)
			if err == nil || len(args) == 0 {
				return err
			}
			known := slices.Clone(c.ValidArgs)
			for _, sub := range c.Commands() {
				known = append(append(known, sub.Name()), sub.Aliases...)
			}
			return didYouMean(err, args[0], "", known)
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
	return didYouMean(err, name, "--", known)
}

func didYouMean(err error, name, prefix string, known []string) error {
	if best := wording.Nearest(name, known); best != "" {
		return fmt.Errorf("%w; did you mean %s%s?", err, prefix, best)
	}
	return err
}

// OneOf returns an error with the nearest word unless value, in upper or lower case, is one of the
// known words.
func OneOf(value string, known []string) error {
	if slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, value) }) {
		return nil
	}
	return fmt.Errorf("must be one of %s%s", strings.Join(known, ", "), wording.Suggest(value, known))
}
