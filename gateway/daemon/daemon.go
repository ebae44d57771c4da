// Package daemon puts the gateway together: it makes the control loop, the workers, the kernel
// program and the operator's interfaces, starts them, reloads, drains and stops. They are in
// packages of their own, beside it (docs/architecture.md has the list) and in control and fastpath.
//
//	config ─► flow table ─► host link ─► mirror of routes ─► control loop
//	              │ in use                                      │
//	          standby: reads, compiles, waits                   │ first snapshot
//	       status, metrics ◄── workers ◄── sockets, programs ◄──┘
//
// The order of start matters. The lock on the flow table comes first, so that a second instance
// changes nothing: it waits until the first one ends (standby.go), or receives everything from it
// (successor.go). The first snapshot is published before any socket is bound, so that no packet
// meets an incomplete table. Stopping is the reverse order. It restores the node, or leaves
// everything to the next process (drain.handOver).
//
// The files, from the ground up; none uses a later line:
//
//	lifetime, settings, seed, flowstate, hostlink, inputs    each owns a part of the state
//	flowlog                                                  the same
//	impaired, reach, pulse, confine                          the same, towards the outside
//	certificates, readers, servers                           the same
//	attempts, offer, requests, handover                      the hand-over and its phase
//	daemon                                                   Daemon joins the parts
//	health, checks, events, group, groupnodes, gateway, control, build   its operations
//	predecessor, open, successor, standby, stop, run         its life
package daemon

import (
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/gateway/captures"
	"sluice.dev/sluice/gateway/checks"
	"sluice.dev/sluice/gateway/denials"
	"sluice.dev/sluice/gateway/drops"
	"sluice.dev/sluice/gateway/explain"
	"sluice.dev/sluice/gateway/members"
	"sluice.dev/sluice/gateway/ports"
	"sluice.dev/sluice/gateway/steering"
	"sluice.dev/sluice/gateway/workers"
	"sluice.dev/sluice/host/neigh"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/host/nic/frames"
	"sluice.dev/sluice/host/sandbox"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/serve/status"
)

// Daemon is one running gateway. Each of its parts has its own lock, if it needs one. The pointers
// are set while the gateway starts, and do not change after that.
type Daemon struct {
	log       *slog.Logger
	startedAt time.Time
	settings  *settings
	seed      seedState
	life      lifetime
	handOver  handOver
	sandbox   *sandbox.State // nil if there is none

	flows    flowState
	kernel   kernelProgram
	host     hostSide
	hops     *nexthop.Table
	services services.Handle // the snapshot that the workers use
	mirror   *neigh.Mirror
	frames   frames.Choice
	plan     devices.Plan
	workers  *workers.Group
	ports    *ports.Set
	explain  *explain.Explainer
	captures *captures.Set
	drops    *drops.Watch
	denials  *denials.List
	group    *members.Members // nil if there is none
	members  groupNodes
	// formerSources are source addresses that this gateway had in a group before it started, and
	// that flows may have; nil: none.
	formerSources atomic.Pointer[[]netip.Addr]
	open          chan struct{}      // closed when the interfaces are open
	compares      chan chan struct{} // requests of waitConfig

	inputs   inputs
	compiler *compiler.Compiler // made by the standby, if there was one
	loop     *loop.Loop
	totals   *status.Totals
	checks   *checks.Runner
	health   healthServers

	reach    reachability
	pulse    pulseSource
	servers  servers
	beats    heartbeat.Set
	shutdown shutdown
}

// kernelProgram is the kernel program and the mount of its pins.
type kernelProgram struct {
	*steering.Program
	mount *steering.Mount
	left  []int // indexes of the interfaces that a predecessor has left programs on
}

// shutdown is the state of a process that ends without a successor beside it.
type shutdown struct {
	draining    atomic.Bool
	leavesState atomic.Bool // flows and programs stay for the next process
	// leaving is why this node is no gateway any more; empty if it is one. The goroutine that
	// drains and stops uses it.
	leaving string
	removed bool // the gateway was removed from its group for good; see leaving
}

// snapshot returns the published snapshot, or an empty one before the first.
func (d *Daemon) snapshot() *services.Snapshot {
	if s := d.services.Load(); s != nil {
		return s
	}
	return &services.Snapshot{}
}

// isOpen reports whether the interfaces are open.
func (d *Daemon) isOpen() bool {
	select {
	case <-d.open:
		return true
	default:
		return false
	}
}

// forwards reports whether packets are forwarded. A process that has taken over forwards before it
// is open, because the programs of its predecessor pass packets to it.
func (d *Daemon) forwards() bool { return d.isOpen() || d.handOver.succeeded() }

// stalled lists running workers that are stalled.
func (d *Daemon) stalled() []int {
	if !d.isOpen() {
		return nil
	}
	return d.workers.Stalled(boottime.Nanos())
}

// unfinishedChecksums sums the counters of the workers.
func (d *Daemon) unfinishedChecksums() (n uint64) {
	for _, b := range d.workers.Blocks() {
		n += b.UnfinishedChecksums.Load()
	}
	return n
}

// keepsState reports whether flows and programs stay for the next process. A gateway that forwards
// leaves them if drain.handOver is set, regardless of the reason of its end, unless its node is no
// gateway any more, or was removed from the group. A gateway that failed to start leaves them if
// they are a predecessor's.
func (d *Daemon) keepsState() bool {
	if d.shutdown.leaving != "" || d.shutdown.removed {
		return false
	}
	if d.forwards() {
		return d.settings.config().Drain.HandOver
	}
	return d.flows.file != nil && !d.flows.file.Recovery.Fresh || len(d.kernel.left) > 0
}
