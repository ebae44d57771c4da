package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/flows"
	"sluice.dev/sluice/gateway/nodeconfig"
	"sluice.dev/sluice/host/hostlink"
	"sluice.dev/sluice/host/neigh"
	"sluice.dev/sluice/internal/unixsocket"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/xdpprog"
)

// lockEvery is how often a waiting process tries the lock on the flow table. A blocking flock(2)
// would not end with SIGTERM.
const lockEvery = 10 * time.Millisecond

// Pauses between two requests for a hand-over: the first, and the longest.
const (
	askAgain  = time.Second
	askSeldom = 30 * time.Second
)

// own makes this the only instance: it takes the lock on the flow table. While another process has
// it, this one reads and compiles objects, so that it forwards soon after the other one has
// stopped, crashed or been killed. It returns an error if ctx is done before.
//
// If it is to take over, it asks the other process to hand over once it has compiled all, and again
// where that refuses: an interface may be down for a moment, or that process itself may have taken
// over just now. took reports that it did: then this process forwards already.
func (d *Daemon) own(ctx context.Context) (took bool, err error) {
	if err := d.makeObjects(); err != nil {
		return false, err
	}
	err = d.lock()
	if err == nil {
		return false, d.takeSeed()
	}
	if !errors.Is(err, flowtable.ErrInUse) {
		return false, err
	}
	d.findSeed()
	d.waited = true
	s, err := d.startStandby()
	if err != nil {
		return false, err
	}
	defer s.stop()
	d.log.Info("waiting for another process to end", "why", s.why())
	tick := time.NewTicker(lockEvery)
	defer tick.Stop()
	compiled, ask := s.compiled, (<-chan time.Time)(nil)
	pause := askAgain
	for {
		select {
		case <-ctx.Done():
			d.log.Info("ended while it waited; nothing was changed")
			return false, ctx.Err()
		case err := <-d.failed:
			return false, err
		case <-compiled:
			if compiled = nil; d.takeOver {
				ask = time.After(0)
			}
			continue
		case <-ask:
			if took, err := d.tryTake(ctx, s); took || err != nil {
				return took, err
			}
			ask, pause = time.After(pause), min(2*pause, askSeldom)
		case <-tick.C:
		}
		if err := d.lock(); !errors.Is(err, flowtable.ErrInUse) {
			d.log.Info("the other process has ended", "waited", time.Since(s.since).Round(time.Millisecond))
			d.loadAgain()
			if err == nil {
				err = d.takeSeed()
			}
			return false, err
		}
	}
}

// lock opens the flow table.
func (d *Daemon) lock() (err error) {
	// A process that ends removes its directory if nothing is left in it.
	if err := os.MkdirAll(d.config.StateDir, 0o700); err != nil {
		return fmt.Errorf("stateDir: %w", err)
	}
	d.flows, err = flows.Open(d.config, d.log)
	return err
}

// loadAgain replaces the configuration by what the file has after a wait. One that is invalid by
// then changes nothing, as in a reload.
func (d *Daemon) loadAgain() {
	next, found, err := load(d.file)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.loaded = found
	if err != nil {
		d.log.Error("configuration is refused, the one from the start of the wait stays in force", "error", err)
		d.reloadErr = err
		return
	}
	for _, c := range d.config.Diff(next) {
		if c.Restart {
			// Objects are read and the table is locked by the old one: the file's takes a restart.
			d.needRestart = append(d.needRestart, c)
		}
	}
	d.config, d.loadedAt = d.config.Reload(next), time.Now()
	d.setLevel(d.config)
}

// releaseTime bounds how long the kernel takes to close what a process had that was killed: the
// lock on the flow table may be free before the others.
const releaseTime = 5 * time.Second

// retryInUse does a step of the start, and again for a while if another process has what it needs
// and this one has waited for that process: it is still ending.
func (d *Daemon) retryInUse(ctx context.Context, step func(context.Context) error) error {
	deadline := time.Now().Add(releaseTime)
	for {
		err := step(ctx)
		inUse := errors.Is(err, flowtable.ErrInUse) || errors.Is(err, xdpprog.ErrInUse) ||
			errors.Is(err, hostlink.ErrInUse) || errors.Is(err, status.ErrInUse) ||
			errors.Is(err, unixsocket.ErrInUse)
		if !d.waited || !inUse || time.Now().After(deadline) {
			return err
		}
		time.Sleep(lockEvery)
	}
}

// standby is a process that waits for another one. It has a status socket of its own, and a mirror
// and a loop that nothing is published from: tracker and compiler are what the gateway goes on
// with.
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
	ctx, s.cancel = context.WithCancel(d.life)
	mirror, err := neigh.New(neigh.Config{Links: mirrorLinks(d.config), Table: nexthop.NewTable(), Logger: d.log})
	if err != nil {
		return nil, err
	}
	s.group.Go(func() {
		if err := mirror.Run(ctx); err != nil {
			d.log.Warn("routes cannot be read while another process runs", "error", err)
		}
	})
	node, _ := d.config.Node() // checked at start
	prepare := func(cfg *compiler.Config) {
		select {
		case <-mirror.Ready():
		case <-ctx.Done():
		}
		*cfg = nodeconfig.Compiler(d.config, node, d.currentSeed().Key, mirror.Addresses(), mirror.Sources(),
			d.objects.tracker.Node(node))
	}
	d.compiler = compiler.New(compiler.Config{NodeName: node})
	s.loop = loop.New(loop.Config{
		Log: d.log, Tracker: d.objects.tracker, Compiler: d.compiler, Feeds: d.objects.feeds(), Prepare: prepare,
		Window: controlWindow, Publisher: loop.NewPublisher(new(services.Handle), nil),
	})
	d.readObjects(d.life)
	s.group.Go(func() {
		s.loop.Standby(ctx, func() {
			d.log.Info("objects are read and compiled, waiting for the other process")
			close(s.compiled)
		})
	})
	s.serve(ctx)
	return s, nil
}

// serve answers on a socket of its own until ctx is done. Without it, as where a third process
// waits, this one waits nevertheless, and tries again: probes and a reload ask there.
func (s *standby) serve(ctx context.Context) {
	path := cmp.Or(os.Getenv(config.WaitingVariable), s.d.config.WaitingSocket())
	l, err := status.Listen(path)
	s.group.Go(func() {
		for said := ""; err != nil; l, err = status.Listen(path) {
			if why := err.Error(); why != said {
				said = why
				s.d.log.Warn("no status while this process waits: trying again", "error", err)
			}
			if pause(ctx, retryEvery); ctx.Err() != nil {
				return
			}
		}
		server := status.NewServer(s, s.d.log)
		s.group.Go(func() { _ = server.Serve(l) })
		<-ctx.Done()
		within, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = server.Shutdown(within)
	})
}

// stop ends it. Tracker and compiler are free for another goroutine afterwards.
func (s *standby) stop() {
	s.cancel()
	s.group.Wait()
}

// processName names a process by the number that the kernel has for it here (SO_PEERCRED).
func processName(pid int) string {
	if pid == 0 {
		return "a process of another container"
	}
	return fmt.Sprintf("process %d", pid)
}

// why says for whom this process waits, and since when.
func (s *standby) why() string {
	who := "another process"
	if pid, err := status.PeerPID(s.d.config.StatusSocket()); err == nil { // it may not have its socket yet
		who = processName(pid)
	}
	return fmt.Sprintf("%s has the flow table in %s; this one waits for it since %s", who, s.d.config.StateDir,
		s.since.UTC().Format(time.RFC3339))
}
