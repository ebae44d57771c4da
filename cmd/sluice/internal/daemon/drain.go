package daemon

import (
	"time"

	"sluice.dev/sluice/cmd/sluice/internal/flows"
)

// drain serves flows until no connection is open or the time is over. Readiness is off at once.
// With drain.handOver it does not wait: the next process serves them.
func (d *Daemon) drain() error {
	d.draining.Store(true)
	if d.configuration().Drain.HandOver && d.isOpen() {
		d.log.Info("handing over: flows, programs and host link stay for the next process", "connections",
			d.connections(),
			"passAfter", d.configuration().Tuning.PassAfter.D())
		return nil
	}
	timeout := d.configuration().Drain.Timeout.D()
	d.log.Info("draining", "connections", d.connections(), "timeout", timeout)
	deadline := time.After(timeout)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for d.connections() > 0 {
		select {
		case err := <-d.failed:
			return err
		case <-deadline:
			d.log.Warn("drain time is over", "connections", d.connections())
			return nil
		case <-tick.C:
		}
	}
	return nil
}

func (d *Daemon) connections() uint64 {
	c := d.flows.Table.Counts()
	return flows.Connections(&c)
}
