package daemon

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/drains"
	"sluice.dev/sluice/gateway/flows"
	"sluice.dev/sluice/gateway/owners"
	"sluice.dev/sluice/gateway/seed"
	"sluice.dev/sluice/gateway/sources"
	"sluice.dev/sluice/serve/status"
)

// flowState owns the flow table, whose lock makes this process the only instance, and the affinity
// pins. Both outlive a process, in files of stateDir.
type flowState struct {
	file   *flowtable.File
	pins   *flows.Pins
	reader *flows.Reader
	log    flowLog
	onDisk bool // stateDir is not in memory

	adopted chan struct{} // closed when the recovered flows count for their backends
	// unserved is the warning about recovered flows that this configuration cannot serve; nil if
	// there are none.
	unserved atomic.Pointer[string]
	// drainsLost is why the predecessor's drains are lost; nil if they are not, or since the
	// operator has drained again.
	drainsLost atomic.Pointer[error]
}

const onDisk = "stateDir is not on a tmpfs: the flow table is written to disk as long as flows change, which costs " +
	"the disk and may hold up workers"

// lock opens the flow table. It returns flowtable.ErrInUse while another process has it.
func (f *flowState) lock(c *config.Configuration, log *slog.Logger) (err error) {
	// A process that ends removes the directory if it is empty.
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return fmt.Errorf("stateDir: %w", err)
	}
	f.file, err = flows.Open(c, log)
	return err
}

// open opens the pins and the reader beside the flow table, which lock has opened.
func (f *flowState) open(c *config.Configuration, log *slog.Logger, snapshot *services.Handle) (err error) {
	f.noteDisk(c, log)
	if f.pins, err = flows.OpenPins(c, log); err != nil { // first, because retryInUse repeats it
		return err
	}
	return f.read(c, log, snapshot)
}

// read starts the flow log and the reader, the first participant of the table.
func (f *flowState) read(c *config.Configuration, log *slog.Logger, snapshot *services.Handle) (err error) {
	if err := f.log.open(c, f.file.Table, snapshot, log); err != nil {
		return err
	}
	f.reader, err = flows.NewReader(f.file.Table, snapshot)
	return err
}

// receive is lock and open with the descriptors of the predecessor's files.
func (f *flowState) receive(
	c *config.Configuration, log *slog.Logger, snapshot *services.Handle, table, pins int,
) (err error) {
	f.noteDisk(c, log)
	if f.file, err = flows.Take(c, os.NewFile(uintptr(table), "flows")); err != nil {
		return err
	}
	if f.pins, err = flows.TakePins(c, os.NewFile(uintptr(pins), "pins")); err != nil {
		return err
	}
	return f.read(c, log, snapshot)
}

func (f *flowState) noteDisk(c *config.Configuration, log *slog.Logger) {
	if f.onDisk = !config.InMemory(c.StateDir); f.onDisk {
		log.Warn(onDisk, "stateDir", c.StateDir)
	}
}

// recovered reports whether the flow table has flows of a predecessor.
func (f *flowState) recovered() bool { return f.file.Recovery.Recovered > 0 }

// adopt counts the recovered flows for their backends. It runs beside the workers, because a large
// table takes long and packets need not wait for it.
func (f *flowState) adopt(log *slog.Logger) {
	defer close(f.adopted)
	if !f.recovered() {
		return
	}
	began := time.Now()
	n := f.reader.Adopt()
	log.Info("flows of a previous process count for their backends", "flows", n, "took",
		time.Since(began).Round(time.Millisecond))
}

// prunePins removes the pins to backends that ended while no process ran. The first snapshot must
// be published; workers may run.
func (f *flowState) prunePins(log *slog.Logger, snapshot *services.Handle) {
	if n := f.pins.Prune(snapshot.Load); n > 0 {
		log.Info("affinity pins to backends that ended while no process ran are removed", "pins", n)
	}
}

// connections counts the open connections of this gateway. Copies of flows of other gateways are
// left out.
func (f *flowState) connections() uint64 {
	t := f.file.Table
	c := t.Counts()
	n := flows.Connections(&c)
	return n - min(n, uint64(t.OpenCopies())) // the counts are of different instants
}

// hasConnections reports whether connections count under a backend's number.
func (f *flowState) hasConnections(r services.BackendRef) bool {
	return f.file.Table.Loads()[r.Index()].Load() > 0
}

// noteMissing marks the flow table as missing if a predecessor has left programs and no table.
func (f *flowState) noteMissing(programsLeft bool, log *slog.Logger) {
	r := &f.file.Recovery
	if r.Missing = r.Fresh && !r.Unread && programsLeft; r.Missing {
		log.Warn(flows.Losses(r))
	}
}

// reportLosses makes an Event of the flows that the start has lost.
func (f *flowState) reportLosses(t *tracker.Tracker, node string) {
	if list := flows.LossProblems(&f.file.Recovery, node); len(list) > 0 {
		report(t, flows.Source(), list)
	}
}

// report replaces the problems of a source.
func report(t *tracker.Tracker, source objects.Source, problems []objects.Problem) {
	var b tracker.Batch
	b.Report(source, problems)
	t.Apply(&b)
}

// conditions reports flows and drains that were lost, and flows that cannot be served.
func (f *flowState) conditions() (list []status.ConditionView) {
	if f.onDisk {
		list = append(list, status.Warning("state-dir", onDisk))
	}
	if why := flows.Losses(&f.file.Recovery); why != "" {
		list = append(list, status.Warning("flow-table", why))
	}
	if why := f.log.Problem(); why != "" {
		list = append(list, status.Warning("flow-log", why))
	}
	if why := f.unserved.Load(); why != nil {
		list = append(list, status.Warning("flows", *why))
	}
	if err := f.drainsLost.Load(); err != nil {
		list = append(list, status.Failed("drains", "backends that the operator drained before the start take new "+
			"flows again: drain them again, or remove the file and restart: "+(*err).Error()))
	}
	return list
}

// loadDrains gives the compiler the drains that a predecessor has saved. If they cannot be read,
// backends take new flows again.
func (f *flowState) loadDrains(c *config.Configuration, log *slog.Logger, to *compiler.Compiler) {
	list, err := drains.Load(c.StateDir)
	if err != nil {
		log.Error("drains of the previous process are lost: repeat them", "error", err)
		f.drainsLost.Store(&err)
	}
	if len(list) > 0 {
		log.Info("drains of the previous process are restored", "drains", list)
	}
	to.SetDrains(list)
}

// close closes the files for the next process. A table that replaces a missing one is removed, so
// that the next start reports again that it is missing.
func (f *flowState) close(forwarded bool) (errs []error) {
	errs = append(errs, f.pins.Close(false), f.log.close(false))
	if f.file.Recovery.Missing && !forwarded {
		return append(errs, f.file.Remove())
	}
	return append(errs, f.file.Close())
}

// remove removes the files, and the files of stateDir that only a process with the same flows
// needs. The lock ends last, because another process may wait for it.
func (f *flowState) remove(stateDir string) []error {
	errs := []error{f.log.close(true), f.pins.Close(true), owners.Remove(stateDir), sources.Forget(stateDir),
		f.file.Remove()}
	_ = os.Remove(filepath.Join(stateDir, seed.Name)) // no flow needs the same choice again
	return errs
}
