package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/serve/metrics"
	"sluice.dev/sluice/serve/status"
)

// probeTimeout is below the 5 s that the kubelet gives a probe in the chart, so that its Event has
// the reason.
const probeTimeout = 4 * time.Second

// probeCommand is for the kubelet. It uses the status socket, because on the host's network another
// process may have our port: it would answer in our place, or a gateway that forwards would not
// become ready.
func (s *session) probeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "probe live|ready",
		Short: "Exit with 0 if the daemon is alive, or ready; for probes",
		Long: "probe fails, and prints the reason, if the daemon is not\n" +
			"  live:  it answers, and no worker or loop has stalled. One that waits for the API server is alive;\n" +
			"  ready: it forwards packets and is not about to stop, as /readyz says.",
		Args:      cobra.MatchAll(one, cobra.OnlyValidArgs),
		ValidArgs: []string{"live", "ready"},
		RunE: func(c *cobra.Command, args []string) error {
			var err error
			if s.socket, err = ownSocket(s.socket); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), probeTimeout)
			defer cancel()
			return s.ask(func(client *status.Client) error {
				if args[0] == "live" {
					v, err := client.Stats(ctx)
					return errors.Join(err, alive(&v))
				}
				v, err := client.Status(ctx, false)
				if err == nil && !v.Ready {
					err = fmt.Errorf("not ready: %s", strings.Join(v.NotReady, "; "))
				}
				return err
			})
		},
	}
}

// ownSocket returns the status socket of the process that waits, if another container's process has
// the other one: the kubelet asks about this container. It is an error if that one is another
// container's, too, as while three wait for each other. Outside of containers, where all processes
// are seen, it returns the socket itself.
func ownSocket(socket string) (string, error) {
	if !foreign(socket) {
		return socket, nil
	}
	waiting := filepath.Join(filepath.Dir(socket), config.WaitingSocketFile)
	if foreign(waiting) {
		return "", fmt.Errorf("processes of other containers have %s and %s: this container's waits without a socket "+
			"until one of them ends, or does not run", socket, waiting)
	}
	return waiting, nil
}

// foreign reports whether a process that is not seen here, as another container's, has a socket.
func foreign(socket string) bool {
	pid, err := status.PeerPID(socket)
	return err == nil && pid == 0
}

// alive returns an error that names the workers whose last pass is too long ago, and the loops that
// have stalled. A worker without a pass has not started yet, because there is no table.
func alive(v *status.StatsView) error {
	var errs []error
	for i := range v.Workers {
		if w := &v.Workers[i]; time.Duration(w.PulseNanos) > metrics.DefaultStale {
			errs = append(errs, fmt.Errorf("worker %d stands still for %v", w.Worker,
				time.Duration(w.PulseNanos).Round(time.Millisecond)))
		}
	}
	for _, why := range v.Stalled {
		errs = append(errs, errors.New(why))
	}
	return errors.Join(errs...)
}
