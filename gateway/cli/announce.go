package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/announce/view"
)

func (s *session) announceCommand() *cobra.Command {
	socket := view.DefaultSocket
	c := &cobra.Command{
		Use:   "announce",
		Short: "Show the peers and interfaces on which each VIP is announced, or why it is not",
		Long: "announce asks the announcer (sluice-announcer), a separate process, where it announces each VIP,\n" +
			"with which attributes, and why it does not announce a VIP.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			v, err := view.Ask(c.Context(), socket)
			if errors.Is(err, view.ErrNotRunning) {
				return fmt.Errorf("%w Give its socket with --announcer", err)
			}
			if err != nil {
				return err
			}
			if s.format == formatTable {
				return view.Print(s.app.Out, v)
			}
			return s.print(v, nil)
		},
	}
	c.Flags().StringVar(&socket, "announcer", socket, "socket of the announcer: status.sock in its --state-dir")
	return c
}
