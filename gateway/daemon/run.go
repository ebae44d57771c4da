package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/host/hostlink"
	"sluice.dev/sluice/host/sdnotify"
	"sluice.dev/sluice/internal/logs"
	"sluice.dev/sluice/internal/unixsocket"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/xdpprog"
)

// Run runs the gateway until ctx is done, and cleans up. It returns an error if the gateway could
// not start or continue. If another process runs, it waits for the end of that process. With
// takeOver it first asks that process to hand over, and waits if that refuses.
func Run(ctx context.Context, file string, takeOver bool) error {
	logs.Queue()
	if err := checkKernel(); err != nil {
		return err
	}
	s, err := loadSettings(file)
	if err != nil {
		return err
	}
	s.journal.Queue()
	defer s.journal.Flush(logs.FlushTimeout)
	klog.SetSlogLogger(s.log)
	d := &Daemon{
		log: s.log, startedAt: time.Now(), settings: s, seed: seedState{settings: s},
		handOver: newHandOver(takeOver, s.log),
		flows:    flowState{adopted: make(chan struct{})},
		host:     hostSide{settings: s, log: s.log, lockFD: -1},
		hops:     nexthop.NewTable(), open: make(chan struct{}),
		compares: make(chan chan struct{}),
	}
	d.life.start(ctx)
	d.life.spawn(func() { sdnotify.Run(d.life.ctx, d.notifications()) })
	err = d.live(ctx)
	switch {
	case errors.Is(err, errHandedOver):
		return nil // the process ends with everything as it is
	case errors.Is(err, errNotReceived) && ctx.Err() != nil:
		return nil // it was asked to end, and has changed nothing
	case errors.Is(err, errNotReceived):
		return err
	}
	return errors.Join(err, d.stop())
}

// checkKernel returns an error for a kernel that is too old. A kernel whose release cannot be
// parsed may be new enough.
func checkKernel() error {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return fmt.Errorf("read the kernel's release: %w", err)
	}
	if err := config.CheckKernel(unix.ByteSliceToString(uts.Release[:])); !errors.Is(err, config.ErrKernelRelease) {
		return err
	}
	return nil
}

// live starts and serves until ctx is done, or until a successor has everything.
func (d *Daemon) live(ctx context.Context) error {
	received, err := d.own(ctx)
	if err != nil && ctx.Err() != nil && !errors.Is(err, errNotReceived) {
		return nil // it was asked to end while it waited
	}
	if err == nil && !received {
		c := d.settings.config()
		d.handOver.followLast(c)
		d.inputs.own(c)
		d.ownJournal()
		if err = d.readMembers(ctx); err != nil && ctx.Err() != nil {
			return nil // it was asked to end while it waited
		}
		if err == nil {
			err = d.start()
		}
	}
	if err != nil {
		return err
	}
	return d.serve(ctx)
}

// start builds all parts in order. After an error stop undoes it.
func (d *Daemon) start() error {
	for _, step := range []func() error{
		d.openFlows, d.loadProgram, d.makeHostLink, func() error { return d.makeDatapath(nil) },
		d.startMirror, d.confine, d.startControl, d.startFlowLog, d.startServers,
	} {
		if err := d.retryInUse(step); err != nil {
			return err
		}
	}
	d.life.spawn(func() { d.openPorts(d.life.ctx) })
	return nil
}

// retryInUse runs a step of the start. A predecessor that this process has waited for may still be
// ending: if the step fails because another process uses a file, retryInUse repeats it for a while.
func (d *Daemon) retryInUse(step func() error) error {
	deadline := time.Now().Add(releaseTime)
	for {
		err := step()
		inUse := errors.Is(err, flowtable.ErrInUse) || errors.Is(err, xdpprog.ErrInUse) ||
			errors.Is(err, hostlink.ErrInUse) || errors.Is(err, status.ErrInUse) ||
			errors.Is(err, unixsocket.ErrInUse)
		if !d.handOver.waited || !inUse || time.Now().After(deadline) {
			return err
		}
		time.Sleep(lockEvery)
	}
}

// serve waits until ctx is done, or for a failure. It reloads on SIGHUP and when the file changes.
func (d *Daemon) serve(ctx context.Context) (err error) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	d.life.spawn(func() { d.watchConfig(d.life.ctx, hup) })
	select {
	case err = <-d.life.failed:
	case <-d.handOver.accepted:
	case <-ctx.Done():
	}
	if d.handOver.end() {
		d.flows.log.end(d.log)
		d.log.Info("handed over to the next process; this one ends")
		return errHandedOver
	}
	if d.shutdown.removed = errors.Is(err, errRemoved); err != nil {
		return err
	}
	return d.drain()
}
