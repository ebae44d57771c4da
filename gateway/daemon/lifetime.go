package daemon

import (
	"context"
	"sync"
	"time"
)

// lifetime owns the goroutines of a daemon. There are two contexts, because the workers must run
// until the programs no longer redirect packets to them.
type lifetime struct {
	ctx           context.Context // of all goroutines but the workers
	cancel        context.CancelFunc
	workers       context.Context
	cancelWorkers context.CancelFunc
	group         sync.WaitGroup // the goroutines under ctx
	failed        chan error     // receives the error that ends the daemon
}

// start makes the contexts. They outlive ctx, because flows are served while the gateway drains.
func (l *lifetime) start(ctx context.Context) {
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	l.workers, l.cancelWorkers = context.WithCancel(context.WithoutCancel(ctx))
	l.failed = make(chan error, 16)
}

// spawn runs f in a goroutine that the end of the daemon waits for.
func (l *lifetime) spawn(f func()) { l.group.Go(f) }

// fail ends the daemon with an error.
func (l *lifetime) fail(err error) {
	select {
	case l.failed <- err:
	default: // an earlier error is reported
	}
}

// end cancels and awaits all goroutines but the workers. Reads of the configuration and writes of
// the members of a group have no bound for a disk that hangs: systemd or the kubelet ends the
// process then, and the next one recovers from that as from a crash.
func (l *lifetime) end() {
	l.cancel()
	l.group.Wait()
}

// retryEvery is the pause between two attempts of a step that the daemon cannot do without.
const retryEvery = time.Second

// lockEvery is the interval between two attempts to get a lock or a name that another process has.
// A blocking flock(2) would not end with SIGTERM.
const lockEvery = 10 * time.Millisecond

// releaseTime bounds the wait for the kernel to close the files of a process that was killed: the
// lock on the flow table may be free before the others.
const releaseTime = 5 * time.Second
