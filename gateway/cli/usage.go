package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

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
