package daemon

import "log/slog"

// farewell writes the last line of the log: what of a daemon that forwarded is left on the
// node, and how many connections were open. Who hands over breaks none of them.
func farewell(log *slog.Logger, keep bool, open uint64, err error) {
	switch {
	case err != nil:
		log.Error("stopped, and the node is not clean: start it again and end it with SIGTERM, which removes what is left", "error", err, "openConnections", open)
	case keep:
		log.Info("stopped; flows, programs and pins wait for the next process", "openConnections", open)
	default:
		log.Info("stopped, the node is clean", "brokenConnections", open)
	}
}
