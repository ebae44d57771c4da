package daemon

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"sluice.dev/sluice/allocate/assign"
	"sluice.dev/sluice/gateway/denials"
	"sluice.dev/sluice/gateway/drains"
	"sluice.dev/sluice/internal/unixsocket"
)

// drain serves flows until no connection is open or the time is over. Readiness ends at once. With
// drain.handOver it does not wait, because the next process serves the flows, if there will be one.
func (d *Daemon) drain() error {
	d.shutdown.leaving = d.inputs.leaving()
	d.shutdown.leavesState.Store(d.keepsState())
	d.shutdown.draining.Store(true)
	c, connections := d.settings.config(), d.flows.connections
	switch {
	case d.shutdown.leaving != "":
		d.log.Info("this node is no gateway any more: nothing is left for a next process", "why", d.shutdown.leaving)
	case c.Drain.HandOver && d.forwards():
		d.log.Info("handing over: flows, programs and host link stay for the next process", "connections",
			connections(), "passAfter", c.Tuning.PassAfter.D())
		return nil
	}
	timeout := c.Drain.Timeout.D()
	d.log.Info("draining", "connections", connections(), "timeout", timeout)
	deadline := time.After(timeout)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for connections() > 0 {
		select {
		case err := <-d.life.failed:
			return err
		case <-deadline:
			d.log.Warn("drain time is over", "connections", connections())
			return nil
		case <-tick.C:
		}
	}
	return nil
}

// stop undoes start, in reverse: first it ends the goroutines that repair things, then it removes
// the programs, so that packets go to the kernel, then it stops the workers.
func (d *Daemon) stop() error {
	var errs []error
	keep := d.keepsState()
	if !keep {
		errs = append(errs, d.leaveGroup())
	}
	d.life.end()
	d.captures.End("the gateway has ended")
	d.servers.wait()
	d.handOver.close()
	if d.kernel.Program != nil {
		errs = append(errs, d.kernel.Release(!keep))
	}
	d.life.cancelWorkers()
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
	if d.group != nil {
		d.group.Close()
	}
	d.explain.Close()
	if d.flows.reader != nil {
		if !keep {
			d.flows.log.endAll(d.flows.reader)
		}
		d.flows.reader.Close()
	}
	d.flows.log.end(d.log)
	var open uint64
	if d.flows.file != nil {
		open = d.flows.connections()
	}
	err := errors.Join(append(errs, d.clear(keep)...)...)
	if d.forwards() {
		logStopped(d.log, keep, open, err)
	}
	return err
}

// clear removes from the node the state that outlives the process, or closes it for the next one.
func (d *Daemon) clear(keep bool) (errs []error) {
	if keep {
		return d.flows.close(d.forwards())
	}
	if h := d.host.current(); h != nil {
		errs = append(errs, h.Remove())
	}
	errs = append(errs, d.kernel.mount.Remove())
	if d.flows.file == nil {
		return errs
	}
	c := d.settings.config()
	errs = append(errs, d.flows.remove(c.StateDir)...)
	if d.shutdown.leaving != "" {
		_ = os.Remove(filepath.Join(c.StateDir, drains.Name))
		_ = os.Remove(filepath.Join(c.StateDir, denials.Name))
		d.settings.journal.Remove()
		_ = os.Remove(filepath.Join(c.StateDir, assign.File))
	}
	_ = unixsocket.RemoveStale(c.WaitingSocket()) // of a process that was killed while it waited
	_ = unixsocket.RemoveStale(c.ReloadSocket())
	removePulseDirectory(c, d.shutdown.leaving != "")
	_ = os.Remove(c.StateDir) // if it is empty now
	return errs
}

// logStopped writes the last line of the log of a gateway that forwarded: whether the node is
// clean, and how many connections were open. If the state is kept, no connection is broken.
func logStopped(log *slog.Logger, keep bool, open uint64, err error) {
	switch {
	case err != nil:
		log.Error("stopped, and the node is not clean: start it again and end it with SIGTERM, which removes the "+
			"rest", "error", err, "openConnections", open)
	case keep:
		log.Info("stopped; flows, programs and pins wait for the next process", "openConnections", open)
	default:
		log.Info("stopped, the node is clean", "brokenConnections", open)
	}
}
