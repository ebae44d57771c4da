package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/nodeconfig"
	"sluice.dev/sluice/host/neigh"
	"sluice.dev/sluice/internal/wake"
	"sluice.dev/sluice/serve/status"
)

// Pauses between two requests for a hand-over: the first, and the longest.
const (
	firstRequestPause   = time.Second
	longestRequestPause = 30 * time.Second
)

// own makes this the only instance: it locks the flow table. While another process has the lock,
// this one reads and compiles objects, so that it forwards soon after the other one has stopped,
// crashed or been killed. It returns an error if ctx is done before that.
//
// If a hand-over was requested (Run), this process asks the other one once it has compiled all
// objects. If that one refuses, it asks again: an interface may be down for a moment, or that
// process may only just have taken over itself. received reports a hand-over: this process
// forwards already then.
func (d *Daemon) own(ctx context.Context) (received bool, err error) {
	if err := d.inputs.make(d.settings.config(), d.log, &d.beats); err != nil {
		return false, err
	}
	err = d.flows.lock(d.settings.config(), d.log)
	if err == nil {
		return false, d.seed.draw()
	}
	if !errors.Is(err, flowtable.ErrInUse) {
		return false, err
	}
	d.seed.find()
	d.handOver.waited = true
	d.handOver.enter(waiting)
	s, err := d.startStandby()
	if err != nil {
		return false, err
	}
	defer s.stop()
	d.log.Info("waiting for another process to end", "why", s.why())
	return s.wait(ctx)
}

// standby is a process that waits for another one. It has a status socket of its own, and a mirror
// and a loop that publish nothing. The gateway continues with its tracker and compiler.
type standby struct {
	d      *Daemon
	since  time.Time
	loop   *loop.Loop
	cancel context.CancelFunc
	group  sync.WaitGroup
	// compiled is closed once all objects are compiled.
	compiled chan struct{}
}

func (d *Daemon) startStandby() (*standby, error) {
	s := &standby{d: d, since: time.Now(), compiled: make(chan struct{})}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(d.life.ctx)
	c := d.settings.config()
	mirror, err := neigh.New(neigh.Config{Links: mirrorLinks(c), Table: nexthop.NewTable(), Logger: d.log})
	if err != nil {
		return nil, err
	}
	s.group.Go(func() {
		if err := mirror.Run(ctx); err != nil {
			d.log.Warn("routes cannot be read while another process runs", "error", err)
		}
	})
	node, _ := c.Node() // checked at start
	prepare := func(cfg *compiler.Config) {
		select {
		case <-mirror.Ready():
		case <-ctx.Done():
		}
		*cfg = nodeconfig.Compiler(c, node, d.seed.current().Key, mirror.Addresses(), mirror.Sources(),
			d.inputs.tracker.Node(node))
	}
	d.compiler = compiler.New(compiler.Config{NodeName: node})
	s.loop = loop.New(loop.Config{
		Log: d.log, Tracker: d.inputs.tracker, Compiler: d.compiler, Feeds: d.inputs.feeds(), Prepare: prepare,
		Window: controlWindow, Publisher: loop.NewPublisher(new(services.Handle), nil),
	})
	d.inputs.read(&d.life)
	s.group.Go(func() {
		s.loop.Standby(ctx, func() {
			d.log.Info("objects are read and compiled, waiting for the other process")
			close(s.compiled)
		})
	})
	s.serve(ctx)
	return s, nil
}

// wait waits until this process has the flow table: by the end of the other process, or by a
// hand-over, which received reports.
func (s *standby) wait(ctx context.Context) (received bool, err error) {
	d := s.d
	tick := time.NewTicker(lockEvery)
	defer tick.Stop()
	compiled, request := s.compiled, (<-chan time.Time)(nil)
	interval := firstRequestPause
	for {
		select {
		case <-ctx.Done():
			d.log.Info("ended while it waited; it has changed nothing")
			return false, ctx.Err()
		case err := <-d.life.failed:
			return false, err
		case <-compiled:
			if compiled = nil; d.handOver.request {
				request = time.After(0)
			}
			continue
		case <-request:
			if received, err := d.requestHandOver(ctx, s.stop); received || err != nil {
				return received, err
			}
			request, interval = time.After(interval), min(2*interval, longestRequestPause)
		case <-tick.C:
		}
		if err := d.flows.lock(d.settings.config(), d.log); !errors.Is(err, flowtable.ErrInUse) {
			d.log.Info("the other process has ended", "waited", time.Since(s.since).Round(time.Millisecond))
			d.handOver.enter(starting)
			d.settings.reload()
			if err == nil {
				err = d.seed.draw()
			}
			return false, err
		}
	}
}

// serve answers on a status socket of its own until ctx is done, for probes and for a reload. While
// a third process that waits has the socket, serve tries again.
func (s *standby) serve(ctx context.Context) {
	path := cmp.Or(os.Getenv(config.WaitingVariable), s.d.settings.config().WaitingSocket())
	l, err := status.Listen(path)
	s.group.Go(func() {
		for logged := ""; err != nil; l, err = status.Listen(path) {
			if why := err.Error(); why != logged {
				logged = why
				s.d.log.Warn("no status while this process waits: trying again", "error", err)
			}
			if !wake.After(ctx, retryEvery) {
				return
			}
		}
		server := limited(status.NewServer(s, s.d.log))
		s.group.Go(func() { _ = server.Serve(l) })
		<-ctx.Done()
		within, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = server.Shutdown(within)
	})
}

// stop ends the goroutines. Another goroutine may use tracker and compiler after that.
func (s *standby) stop() {
	s.cancel()
	s.group.Wait()
}

// why names the process that this one waits for, and the start of the wait.
func (s *standby) why() string {
	c, other := s.d.settings.config(), "another process"
	if pid, err := status.PeerPID(c.StatusSocket()); err == nil { // it may not have its socket yet
		other = processName(pid)
	}
	return fmt.Sprintf("%s has the flow table in %s; this one waits for it since %s", other, c.StateDir,
		s.since.UTC().Format(time.RFC3339))
}

var _ status.Gateway = (*standby)(nil)

// errWaits returns the error for requests that only a gateway that forwards can answer.
func (s *standby) errWaits() error { return errors.New(s.why() + ": ask that one") }

// Status implements status.Gateway. A process that asks for a hand-over and is refused is Ready: a
// rolling update that has started it beside the other one waits for that, and then ends the other
// one. A process that could not start is not Ready, because the other one would end for nothing.
func (s *standby) Status() status.StatusView {
	d, st := s.d, s.loop.Status()
	node, _ := d.settings.config().Node() // checked at start
	v := status.StatusView{
		Node: node, PID: os.Getpid(), StartedAt: d.startedAt, Version: status.ThisBuild(),
		Config: d.settings.view(), Sources: d.inputs.views(st), Problems: status.ProblemViews(st.Problems),
		TakeOver: d.handOver.requests.view.Load(),
	}
	if v.Ready = d.handOver.requests.ready.Load(); !v.Ready {
		v.NotReady = []string{s.why()}
		if v.TakeOver != nil && v.TakeOver.Unable != "" {
			v.NotReady = append(v.NotReady, "this process cannot take over: "+v.TakeOver.Unable)
		}
	}
	return v
}

// Services implements status.Gateway.
func (s *standby) Services() []status.ServiceView { return nil }

// Backends implements status.Gateway.
func (s *standby) Backends() []status.BackendView { return nil }

// Times implements status.Gateway.
func (s *standby) Times() (v status.AllTimesView) { return v }

// ServiceTimes implements status.Gateway.
func (s *standby) ServiceTimes() []status.ServiceTimesView { return nil }

// Flows implements status.Gateway.
func (s *standby) Flows(
	_ *status.FlowFilter, _ uint64, _ int, page []status.FlowView,
) ([]status.FlowView, uint64) {
	return page, 0
}

// DeleteFlows implements status.Gateway.
func (s *standby) DeleteFlows(context.Context, *status.FlowFilter) (int, error) {
	return 0, s.errWaits()
}

// Deny implements status.Gateway.
func (s *standby) Deny(context.Context, netip.Prefix, time.Duration) (status.DeniedView, error) {
	return status.DeniedView{}, s.errWaits()
}

// Allow implements status.Gateway.
func (s *standby) Allow(context.Context, netip.Prefix) error { return s.errWaits() }

// Denials implements status.Gateway.
func (s *standby) Denials() ([]status.DenialView, error) { return nil, s.errWaits() }

// Drops implements status.Gateway.
func (s *standby) Drops(time.Time) status.DropsView {
	return status.DropsView{Drops: []status.DropView{}}
}

// Events implements status.Gateway.
func (s *standby) Events(since time.Time) []status.EventView { return s.d.Events(since) }

// Drain implements status.Gateway.
func (s *standby) Drain(status.Endpoint, bool) (int, error) { return 0, s.errWaits() }

// Explain implements status.Gateway.
func (s *standby) Explain(*status.ExplainQuery) (status.ExplainView, error) {
	return status.ExplainView{}, s.errWaits()
}

// Capture implements status.Gateway.
func (s *standby) Capture(
	context.Context, *status.CaptureQuery, status.CaptureWriter,
) (status.CaptureView, error) {
	return status.CaptureView{}, s.errWaits()
}

// Stats implements status.Gateway.
func (s *standby) Stats() status.StatsView { return status.StatsView{Stalled: s.d.beats.Dead()} }

// SourcePorts implements status.Gateway.
func (s *standby) SourcePorts() []status.SourcePortsView { return nil }

// WaitApplied implements status.Gateway.
func (s *standby) WaitApplied(context.Context) error { return s.errWaits() }
