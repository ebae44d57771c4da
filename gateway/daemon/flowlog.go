package daemon

import (
	"context"
	"log/slog"
	"math/bits"
	"path/filepath"
	"runtime"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/flowlog"
	"sluice.dev/sluice/gateway/flows"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/internal/statefile"
	"sluice.dev/sluice/serve/status"
)

// flowLog is the flow log, if there is one.
type flowLog struct {
	*flowlog.Log // nil: there is none
	events       *flowtable.Log
	accounts     *flowlog.Accounts
	cancel       context.CancelFunc // nil: it does not run
	done         chan struct{}      // closed when it has ended
}

// Bounds of a ring of events, in events: all workers together have about ringEvents.
const (
	ringEvents    = 1 << 16
	ringMinEvents = 1 << 12
)

// open starts to record flows. No participant of the table may be registered yet.
func (f *flowLog) open(
	c *config.Configuration, table *flowtable.Table, snapshot *services.Handle, log *slog.Logger,
) (err error) {
	path := filepath.Join(c.StateDir, flowlog.AccountsFile)
	if !c.FlowLog.Enabled() {
		return statefile.Remove(path) // old accounts: flows are not counted without a flow log
	}
	if f.accounts, err = flowlog.OpenAccounts(path, table.AccountBytes()); err != nil {
		return err
	}
	ring := ringEvents / runtime.NumCPU()
	f.events, err = table.StartLog(max(ringMinEvents, 1<<(bits.Len(uint(ring))-1)), f.accounts.Memory(),
		c.FlowLog.Traffic)
	if err != nil {
		return err
	}
	f.Log = flowlog.New(flowlog.Config{
		Directory: c.FlowLog.Directory, MaxBytes: int64(c.FlowLog.MaxMB) * 1e6, Events: f.events, Services: snapshot,
		Log: log,
	})
	return nil
}

// startFlowLog writes the flow log from now on.
func (d *Daemon) startFlowLog() error {
	d.flows.log.own()
	d.flows.log.run()
	return nil
}

// own notes that this process owns the flow table, before it forwards a packet.
func (f *flowLog) own() {
	if f.Log != nil {
		f.events.Own(flowtable.Time(boottime.Nanos()))
	}
}

func (f *flowLog) run() {
	if f.Log == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background()) // it ends after the workers
	f.cancel, f.done = cancel, make(chan struct{})
	go func() {
		defer close(f.done)
		f.Run(ctx)
	}()
}

// endAll records that all flows end. The workers must have ended.
func (f *flowLog) endAll(r *flows.Reader) {
	if f.Log != nil && f.cancel != nil {
		r.EndAll()
	}
}

// endTimeout bounds the wait for the last lines: the disk may hang, and a next process waits for
// the locks and addresses of this one.
const endTimeout = 5 * time.Second

// end writes the last events, and ends the log.
func (f *flowLog) end(log *slog.Logger) {
	if f.cancel == nil {
		return
	}
	f.cancel()
	f.cancel = nil
	select {
	case <-f.done:
	case <-time.After(endTimeout):
		log.Error("the last lines of the flow log are lost: its disk hangs")
	}
}

// close releases the accounts for the next process, or removes them. The table must not be used any
// more.
func (f *flowLog) close(remove bool) error {
	if f.accounts == nil {
		return nil
	}
	return f.accounts.Close(remove)
}

// view describes the flow log; nil: there is none.
func (f *flowLog) view() *status.FlowLogView {
	if f.Log == nil {
		return nil
	}
	n := f.Counts()
	return &status.FlowLogView{Directory: f.Directory(), Written: n.Written, Lost: n.Lost}
}
