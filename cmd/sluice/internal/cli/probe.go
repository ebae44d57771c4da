package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/control/metrics"
	"sluice.dev/sluice/control/status"
)

// probeCommand is for the kubelet. It uses the status socket, because on the host's network another
// process may have our port: it would answer in our place, or a gateway that forwards would not
// become ready.
func (s *session) probeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "probe live|ready",
		Short: "Exit with 0 if the daemon is alive, or ready; for probes",
		Long: "probe fails, and prints the reason, if the daemon is not\n" +
			"  live:  it answers, and no worker stands still. One that waits for the API server is alive;\n" +
			"  ready: it forwards packets and is not about to stop, as /readyz says.",
		Args:      cobra.MatchAll(one, cobra.OnlyValidArgs),
		ValidArgs: []string{"live", "ready"},
		RunE: func(c *cobra.Command, args []string) error {
			s.socket = ownSocket(s.socket)
			return s.ask(func(client *status.Client) error {
				if args[0] == "live" {
					v, err := client.Stats(c.Context())
					return errors.Join(err, alive(&v))
				}
				v, err := client.Status(c.Context(), false)
				if err == nil && !v.Ready {
					err = fmt.Errorf("not ready: %s", strings.Join(v.NotReady, "; "))
				}
				return err
			})
		},
	}
}

// ownSocket returns the status socket of the process that waits, if another container's process has
// the other one: the kubelet asks about this container. Outside of containers, where all processes
// are seen, it returns the socket itself.
func ownSocket(socket string) string {
	if pid, err := status.PeerPID(socket); err == nil && pid == 0 {
		return filepath.Join(filepath.Dir(socket), config.WaitingSocketFile)
	}
	return socket
}

// alive returns an error that names the workers whose last pass is too long ago. A worker without
// one has not started yet, because there is no table.
func alive(v *status.StatsView) error {
	var errs []error
	for i := range v.Workers {
		if w := &v.Workers[i]; time.Duration(w.PulseNanos) > metrics.DefaultStale {
			errs = append(errs, fmt.Errorf("worker %d stands still for %v", w.Worker,
				time.Duration(w.PulseNanos).Round(time.Millisecond)))
		}
	}
	return errors.Join(errs...)
}
