package daemon

import (
	"errors"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/gateway/drains"
	"sluice.dev/sluice/gateway/flows"
)

// drain serves flows until no connection is open or the time is over. Readiness is off at once.
// With drain.handOver it does not wait: the next process serves them, if one is to be expected.
func (d *Daemon) drain() error {
	if k := d.objects.kubernetes; k != nil {
		d.leaving = k.Leaving()
	}
	d.handingOver.Store(d.leaving == "" && d.keeps())
	d.draining.Store(true)
	switch {
	case d.leaving != "":
		d.log.Info("this node is no gateway any more: nothing is left for a next process", "why", d.leaving)
	case d.configuration().Drain.HandOver && d.forwards():
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

// saveDrains writes the operator's drains, unless a next process has read them just now.
func (d *Daemon) saveDrains(list []compiler.Drain) error {
	d.giving.mu.Lock()
	defer d.giving.mu.Unlock()
	if d.giving.given {
		return errors.New("a next process is taking over: ask that one")
	}
	return drains.Save(d.fixed.StateDir, list)
}

// loadDrains gives the compiler the drains that a predecessor saved. Those that cannot be read are
// lost, which stops nothing: backends take new flows again.
func (d *Daemon) loadDrains() {
	list, err := drains.Load(d.config.StateDir)
	if err != nil {
		d.log.Error("drains of the process before are lost: drain again what must get no new flows", "error", err)
	}
	if len(list) > 0 {
		d.log.Info("drains of the process before hold", "drains", list)
	}
	d.compiler.SetDrains(list)
}

func (d *Daemon) connections() uint64 {
	c := d.flows.Table.Counts()
	return flows.Connections(&c)
}
