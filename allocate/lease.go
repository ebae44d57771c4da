package allocate

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"sluice.dev/sluice/internal/heartbeat"
)

// ErrLeaseLost is returned by Run when another process leads, or the Lease could not be renewed.
var ErrLeaseLost = errors.New("the Lease was lost: another process may lead")

// lease is the lock of client-go's election, and knows how long it is good.
type lease struct {
	resourcelock.Interface
	renewWithin time.Duration // after a renewal, less than the Lease's duration
	now         func() time.Time
	beat        *heartbeat.Beat // of the goroutine that asks for the Lease
	stalled     func() []string // loops of this process that ask for a restart; nil: none do

	mu       sync.Mutex // guards what follows
	led      bool       // it was held, perhaps still is
	lost     bool       // for good: the Lease was given up, or is or was somebody else's since
	until    time.Time
	released bool // the holder before gave it up, after all of its writes
	ended    bool // nothing is written any more
	doubtful bool // a write may happen yet
}

// Get returns what the Lease says. A leader that finds somebody else in it, or nobody, has lost it:
// who led meanwhile is not known.
func (l *lease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.beat.Beat()
	ctx, cancel := context.WithTimeout(ctx, l.renewWithin) // client-go waits for ever where nobody leads
	defer cancel()
	record, raw, err := l.Interface.Get(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		l.released = false
	case l.led:
		l.lost = l.lost || record.HolderIdentity != l.Identity()
	default:
		l.released = record.HolderIdentity == ""
	}
	return record, raw, err
}

// Create is the first holder's, or that of one who finds that the Lease was deleted: then a holder
// may not know it yet.
func (l *lease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, l.Interface.Create)
}

// Update renews, takes over or releases.
func (l *lease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, l.Interface.Update)
}

func (l *lease) write(
	ctx context.Context, record resourcelock.LeaderElectionRecord,
	send func(context.Context, resourcelock.LeaderElectionRecord) error,
) error {
	l.beat.Beat()
	ctx, cancel := context.WithTimeout(ctx, l.renewWithin)
	defer cancel()
	stalled := len(l.dead()) > 0
	held := record.HolderIdentity == l.Identity()
	l.mu.Lock()
	// The next one trusts a Lease that is given up: no write of this process may succeed after
	// that.
	refused := l.lost || !held && (!l.ended || l.doubtful)
	if !held || stalled {
		l.lost, refused = true, refused || stalled // another process leads, which works
	}
	l.mu.Unlock()
	if refused {
		return ErrLeaseLost
	}
	// From before the request: others count from when they see it.
	begin := l.now()
	if err := send(ctx, record); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.led = true
	l.until = begin.Add(l.renewWithin)
	return nil
}

// dead lists the loops of this process that ask for a restart: it does not lead with them.
func (l *lease) dead() []string {
	if l.stalled == nil {
		return nil
	}
	return l.stalled()
}

// valid reports whether nobody else can lead yet. Ask right before each write.
func (l *lease) valid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.led && !l.lost && !l.ended && l.now().Before(l.until)
}

// doubt says that a write whose result is not known may happen yet, of this leader or one before.
// Then the Lease is not given up, but expires, and the next leader fences.
func (l *lease) doubt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.doubtful = true
}

// trust says that no write whose result is not known can happen any more.
func (l *lease) trust() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.doubtful = false
}

// end says that nothing is written any more.
func (l *lease) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}

func (l *lease) hasLed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.led
}

// handedOver reports whether the holder before ended all of its writes.
func (l *lease) handedOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.released
}
