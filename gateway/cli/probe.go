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

// probeTimeout is shorter than the kubelet's timeout in the chart, 5 s, so that the Event has the
// reason.
const probeTimeout = 4 * time.Second

// probeCommand is for the kubelet. It uses the status socket and not an HTTP port: on the host's
// network another process may use the daemon's port, and would answer instead of it, or keep a
// forwarding gateway from becoming ready.
func (s *session) probeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "probe live|ready",
		Short: "Exit with 0 if the daemon is alive or ready, for Kubernetes probes",
		Long: "probe fails and prints the reason unless the daemon is\n" +
			"  live:  it answers, and no worker or loop has stalled (it may wait for the API server);\n" +
			"  ready: it forwards packets and is not about to stop, like /readyz.",
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

// ownSocket returns socket, or the socket of a waiting process if the process that has socket
// belongs to another container: the kubelet asks about its own container. If the waiting process,
// too, belongs to another container, as when three processes wait, ownSocket returns an error.
// Outside of containers, where all processes are visible, it always returns socket.
func ownSocket(socket string) (string, error) {
	if !foreign(socket) {
		return socket, nil
	}
	waiting := filepath.Join(filepath.Dir(socket), config.WaitingSocketFile)
	if foreign(waiting) {
		return "", fmt.Errorf("processes of other containers have %s and %s: the daemon of this container waits "+
			"without a socket until one of them ends, or does not run", socket, waiting)
	}
	return waiting, nil
}

// foreign reports whether the process that listens on a socket is in a PID namespace that this
// process cannot see, such as another container's.
func foreign(socket string) bool {
	pid, err := status.PeerPID(socket)
	return err == nil && pid == 0
}

// alive returns an error that names the workers whose last pass is too long ago, and the loops that
// have stalled. A worker that never had a pass has not started, because there is no table yet.
func alive(v *status.StatsView) error {
	var errs []error
	for i := range v.Workers {
		if w := &v.Workers[i]; time.Duration(w.PulseNanos) > metrics.DefaultStale {
			errs = append(errs, fmt.Errorf("worker %d has made no progress for %v", w.Worker,
				time.Duration(w.PulseNanos).Round(time.Millisecond)))
		}
	}
	for _, why := range v.Stalled {
		errs = append(errs, errors.New(why))
	}
	return errors.Join(errs...)
}
