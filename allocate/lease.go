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

// lease is the lock of client-go's election. It also knows until when the Lease is valid.
type lease struct {
	resourcelock.Interface
	renewWithin time.Duration // validity after a renewal, less than the Lease's duration
	now         func() time.Time
	beat        *heartbeat.Beat // of the goroutine that requests the Lease
	stalled     func() []string // loops of this process that request a restart; nil: none do

	mu       sync.Mutex // guards the fields below
	led      bool       // this process has held the Lease
	lost     bool       // for good: the Lease was released, or another process has held it since
	until    time.Time  // valid before this time
	released bool       // the previous holder released it, after all of its writes
	ended    bool       // this process writes nothing any more
	doubtful bool       // a write with an unknown result may still succeed
}

// Get reads the Lease. If this process has led and the Lease has another holder, or none, the Lease
// is lost: an unknown process may have led meanwhile.
func (l *lease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.beat.Beat()
	ctx, cancel := context.WithTimeout(ctx, l.renewWithin) // while nobody leads, client-go sets no timeout
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

// Create is called for the first holder, or if the Lease was deleted; then its holder may still
// believe that it leads.
func (l *lease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, l.Interface.Create)
}

// Update renews, acquires or releases the Lease.
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
	// The next leader does not fence after a released Lease: no later write of this process may
	// succeed.
	refused := l.lost || !held && (!l.ended || l.doubtful)
	if !held || stalled {
		l.lost, refused = true, refused || stalled // so that a working process leads
	}
	l.mu.Unlock()
	if refused {
		return ErrLeaseLost
	}
	// Taken before the request: other processes count from the moment at which they see the
	// renewal.
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

// dead lists the loops of this process that request a restart. With one of them it must not lead.
func (l *lease) dead() []string {
	if l.stalled == nil {
		return nil
	}
	return l.stalled()
}

// valid reports whether no other process can lead yet. Call it right before each write.
func (l *lease) valid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.led && !l.lost && !l.ended && l.now().Before(l.until)
}

// doubt records that a write with an unknown result, of this leader or a previous one, may still
// succeed. Then the Lease is not released but expires, and the next leader fences.
func (l *lease) doubt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.doubtful = true
}

// trust records that no write with an unknown result can succeed any more.
func (l *lease) trust() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.doubtful = false
}

// end records that this process writes nothing any more.
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

// handedOver reports whether the previous holder released the Lease after its last write.
func (l *lease) handedOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.released
}
