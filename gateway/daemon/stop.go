package daemon

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"sluice.dev/sluice/allocate/assign"
	"sluice.dev/sluice/gateway/drains"
	"sluice.dev/sluice/gateway/owners"
	"sluice.dev/sluice/gateway/seed"
	"sluice.dev/sluice/internal/unixsocket"
)

// stop undoes what start has done, in reverse: first the goroutines that repair things, then the
// programs, so that packets go to the kernel, then the workers.
func (d *Daemon) stop() error {
	var errs []error
	d.cancel()
	d.group.Wait()
	d.servers.wait()
	if l := d.giving.listener; l != nil { // one that was taken may not be served yet
		_ = l.Close()
	}
	keep := d.keeps()
	if d.steer != nil {
		errs = append(errs, d.steer.Release(!keep))
	}
	d.cancelWorkers()
	if d.workers != nil {
		d.workers.Wait()
	}
	if d.ports != nil {
		errs = append(errs, d.ports.Close())
		if !keep {
			errs = append(errs, d.ports.Forget())
		}
	}
	if d.workers != nil {
		errs = append(errs, d.workers.Close())
	}
	d.explain.Close()
	if d.reader != nil {
		d.reader.Close()
	}
	var open uint64
	if d.flows != nil {
		open = d.connections()
	}
	err := errors.Join(append(errs, d.clear(keep)...)...)
	if d.forwards() {
		logStopped(d.log, keep, open, err)
	}
	return err
}

// clear removes from the node what outlives the process, unless it is kept for the next one.
func (d *Daemon) clear(keep bool) (errs []error) {
	if keep {
		errs = append(errs, d.pins.Close(false))
		if d.flows.Recovery.Missing && !d.forwards() {
			return append(errs, d.flows.Remove()) // a start finds again that it is missing
		}
		return append(errs, d.flows.Close())
	}
	if h := d.hostLink(); h != nil {
		errs = append(errs, h.Remove())
	}
	errs = append(errs, d.bpffs.Remove())
	if d.flows != nil {
		// The files go before the lock: another process may wait for that.
		errs = append(errs, d.pins.Close(true), owners.Remove(d.config.StateDir), d.flows.Remove())
		_ = os.Remove(filepath.Join(d.config.StateDir, seed.Name)) // no flow needs the same choice again
		if d.leaving != "" {
			_ = os.Remove(filepath.Join(d.config.StateDir, drains.Name))
			_ = os.Remove(filepath.Join(d.config.StateDir, assign.File))
		}
		_ = unixsocket.RemoveStale(d.config.WaitingSocket()) // of one that was killed while it waited
		_ = unixsocket.RemoveStale(d.config.ReloadSocket())
		d.removePulseDirectory()
		_ = os.Remove(d.config.StateDir) // if it is empty now
	}
	return errs
}

// keeps reports whether flows and programs are left for the next process: a gateway that forwards
// leaves them if drain.handOver is set, regardless of the reason of its end, unless its node is no
// gateway any more; one that failed to start leaves them if they are of a predecessor.
func (d *Daemon) keeps() bool {
	if d.leaving != "" {
		return false
	}
	if d.forwards() {
		return d.configuration().Drain.HandOver
	}
	return d.flows != nil && !d.flows.Recovery.Fresh || len(d.left) > 0
}

// logStopped writes the last line of the log of a gateway that forwarded: what is left on the node,
// and how many connections were open. With drain.handOver none of them is broken.
func logStopped(log *slog.Logger, keep bool, open uint64, err error) {
	switch {
	case err != nil:
		log.Error("stopped, and the node is not clean: start it again and end it with SIGTERM, which removes what is "+
			"left", "error", err, "openConnections", open)
	case keep:
		log.Info("stopped; flows, programs and pins wait for the next process", "openConnections", open)
	default:
		log.Info("stopped, the node is clean", "brokenConnections", open)
	}
}
