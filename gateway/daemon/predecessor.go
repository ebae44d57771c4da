package daemon

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"time"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/gateway/handover"
	"sluice.dev/sluice/gateway/owners"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
)

// predecessor is this process while it answers one successor. It implements handover.Giver.
type predecessor struct {
	d          *Daemon
	version    string // of the successor
	offered    bool   // Continue undoes it
	stopped    bool
	resumeGC   func()       // nil while the collector is on
	resume     func()       // ends the pause of the group's streams; nil without one
	states     *gob.Encoder // to stateBytes
	stateBytes bytes.Buffer
}

// give answers one successor, and reports whether the successor has everything now.
func (p *predecessor) give(ctx context.Context, u *net.UnixConn) (accepted bool) {
	d := p.d
	c, err := handover.NewConn(u)
	if err != nil {
		u.Close()
		d.log.Warn("hand-over refused", "error", err)
		return false
	}
	accepted, err = handover.Give(ctx, c, p, status.ThisBuild().String(), handover.DefaultTimes)
	if accepted {
		return true // the connection stays open: the successor waits until this process ends, which closes it
	}
	c.Close()
	d.handOver.noteFailure(p.version, err)
	return false
}

// refuse answers a successor that asks while this process ends.
func (p *predecessor) refuse(ctx context.Context, u *net.UnixConn) {
	c, err := handover.NewConn(u)
	if err != nil {
		u.Close()
		return
	}
	defer c.Close()
	_, _ = handover.Give(ctx, c, p, status.ThisBuild().String(), handover.DefaultTimes)
}

// Facts implements handover.Giver.
func (p *predecessor) Facts(h *handover.Hello) ([]handover.Fact, error) {
	d := p.d
	p.version = h.Version
	if d.handOver.ends() {
		return nil, errors.New("it is ending")
	}
	if err := d.handOver.attempts.check(h.Version, time.Now()); err != nil {
		return nil, err
	}
	if err := d.handOver.checkIdentity(h.Identity); err != nil {
		return nil, err
	}
	if ids := d.stalled(); len(ids) > 0 {
		return nil, fmt.Errorf("worker %d is stalled, and could not be stopped between two packets: see the "+
			"condition worker in sluice status", ids[0])
	}
	return facts(d.settings.atStart, d.frames.Size, &d.plan, d.flows.file.Table.Layout()), nil
}

// Offer implements handover.Giver.
func (p *predecessor) Offer(ctx context.Context) (_ []byte, files []int, err error) {
	d := p.d
	patience, cancel := context.WithTimeout(ctx, handover.DefaultTimes.Answer/2)
	defer cancel()
	d.captures.End("the gateway hands over to its next process: begin the capture again")
	if err := d.ports.Pause(patience); err != nil {
		return nil, nil, err
	}
	p.offered = true
	d.kernel.Pause()
	if err := d.handOver.offer(patience); err != nil {
		return nil, nil, err
	}
	o := offer{Hops: d.readyHops(), HostLink: d.host.lockFD >= 0, Checks: d.checks.Known()}
	if id := identity(); id != "" {
		o.Predecessors = owners.Add(d.handOver.predecessors, id)
	}
	listening, err := descriptors(d.servers.listener, d.handOver.socket, d.pulse.listener)
	if err != nil {
		return nil, nil, err
	}
	files = append([]int{d.flows.file.FD(), d.flows.pins.FD(), d.kernel.LockFD()}, listening...)
	if o.HostLink {
		files = append(files, d.host.lockFD)
	}
	shapes, more := d.workers.Shapes()
	o.Shapes = shapes
	p.states = gob.NewEncoder(&p.stateBytes)
	if err := p.states.Encode(&state{}); err != nil {
		return nil, nil, err
	}
	o.Types = bytes.Clone(p.stateBytes.Bytes())
	p.stateBytes.Reset()
	b, err := encode(&o)
	p.resumeGC = holdGC()
	return b, append(files, more...), err
}

// Stop implements handover.Giver.
func (p *predecessor) Stop(ctx context.Context) ([]byte, error) {
	d := p.d
	d.flows.reader.Pause() // only these two and the workers have handles of the flow table
	d.explain.Pause()
	p.stopped = true
	var s state
	var err error
	if d.group != nil {
		if p.resume, err = d.group.Pause(ctx); err != nil {
			return nil, err
		}
	}
	within := handover.DefaultTimes.Assume
	if deadline, ok := ctx.Deadline(); ok {
		within = time.Until(deadline)
	}
	if s.Custody, s.StoppedAt, err = d.workers.Pause(within); err != nil {
		return nil, fmt.Errorf("workers do not stop: %w", err)
	}
	s.PausedAt = boottime.Nanos()
	if s.Used, err = d.flows.file.Table.Used(); err != nil {
		return nil, err
	}
	err = p.states.Encode(&s)
	return p.stateBytes.Bytes(), err
}

// Continue implements handover.Giver.
func (p *predecessor) Continue() {
	d := p.d
	if p.stopped {
		if p.resume != nil {
			p.resume()
		}
		d.workers.Resume()
		d.explain.Resume()
		d.flows.reader.Resume()
	}
	if p.resumeGC != nil {
		p.resumeGC()
	}
	if p.offered {
		d.handOver.withdraw()
		d.kernel.Resume()
		d.ports.Resume()
	}
	d.captures.Resume()
}

// readyHops lists the resolved next hops.
func (d *Daemon) readyHops() (list []header.Addr) {
	for id := range nexthop.ID(nexthop.MaxHops - 1) {
		if h := d.hops.Hop(id); h != nil && h.Kind == nexthop.OnLink && h.Ready {
			list = append(list, h.Addr)
		}
	}
	return list
}
