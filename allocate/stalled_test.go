package allocate

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"sluice.dev/sluice/allocate/pools"
	"sluice.dev/sluice/internal/heartbeat"
)

// electedLock is a Lease in memory that client-go's election can use.
type electedLock struct{ fakeLock }

func (*electedLock) RecordEvent(string) {}
func (*electedLock) Describe() string   { return "lease" }

// TestStalledLeader: a leader whose term has stalled renews its Lease for a minute, so that short
// delays do not change the leader. Then it lets the Lease expire, and the process ends although the
// term does not. A leader whose term waits for work continues to lead.
func TestStalledLeader(t *testing.T) {
	for _, test := range []struct {
		name   string
		stalls bool
	}{{"stalls", true}, {"waits", false}} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var beats heartbeat.Set
				lock := &electedLock{}
				l := &lease{Interface: lock, renewWithin: 10 * time.Second, now: time.Now, stalled: beats.Dead,
					beat: beats.Add("election", electionBounds(15*time.Second))}
				c := Config{Log: slog.New(slog.DiscardHandler), Lease: "lease", LeaseDuration: 15 * time.Second,
					Beats: &beats}
				ctx, cancel := context.WithCancel(t.Context())
				never, begin := make(chan struct{}), time.Now()
				ended := make(chan error, 1)
				go func() {
					ended <- elect(ctx, c, l, func(ctx context.Context) error {
						beat := beats.Add("term of the leader", heartbeat.DefaultBounds)
						if beat.Beat(); !test.stalls {
							beat.Rest()
						}
						select {
						case <-never:
						case <-ctx.Done():
							if test.stalls {
								<-never
							}
						}
						return nil
					})
				}()
				time.Sleep(59 * time.Second)
				if !l.valid() {
					t.Error("it does not lead any more after 59 s")
				}
				select {
				case err := <-ended:
					if took := time.Since(begin); !test.stalls || !errors.Is(err, ErrLeaseLost) ||
						!strings.Contains(err.Error(), "term of the leader") || took > 80*time.Second {
						t.Errorf("it ended after %v: %v", took, err)
					}
					if lock.record.HolderIdentity != "me" {
						t.Errorf("the Lease was given up to %q: the term has not ended", lock.record.HolderIdentity)
					}
				case <-time.After(10 * time.Minute):
					if test.stalls {
						t.Error("it leads on")
					}
				}
				cancel()
				close(never)
				synctest.Wait()
			})
		})
	}
}

// TestStalledWriter: a worker whose write exceeds its timeout is reported; one that waits for
// Services is not.
func TestStalledWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var beats heartbeat.Set
		b := newBench(t, balancer("web", nil))
		defer b.queue.ShutDown()
		b.controller.config.Beats = &beats
		b.pools(pools.Spec{Addresses: []string{"192.0.2.0/24"}})
		until := make(chan struct{})
		b.client.PrependReactor("update", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
			<-until
			return true, nil, errors.New("late")
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); b.work(ctx, "writer 0 of Services") }()
		time.Sleep(time.Hour)
		if late := beats.Unready(); len(late) > 0 {
			t.Errorf("nothing to write: %q", late)
		}
		b.queue.Add("default/web")
		time.Sleep(writerBounds.Unready - time.Second)
		if late := beats.Unready(); len(late) > 0 {
			t.Errorf("before the bound: %q", late)
		}
		time.Sleep(time.Second)
		if late := beats.Unready(); len(late) != 1 || !strings.HasPrefix(late[0], "writer 0 of Services: stalled") {
			t.Errorf("after the bound: %q", late)
		}
		time.Sleep(time.Minute)
		if len(beats.Dead()) != 1 {
			t.Errorf("a minute later it does not ask for a restart")
		}
		cancel()
		close(until)
		b.queue.ShutDown()
		<-done
	})
}

// TestRequestsForTheLeaseEnd: a request for the Lease without an answer times out, also if this
// process does not lead and client-go sets no timeout.
func TestRequestsForTheLeaseEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaseTest(t)
		l.Interface = waitingLock{}
		begin := time.Now()
		_, _, err := l.Get(t.Context())
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != l.renewWithin {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
	})
}

// waitingLock is a Lease of an API server that does not answer.
type waitingLock struct{ resourcelock.Interface }

func (waitingLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	<-ctx.Done()
	return nil, nil, ctx.Err()
}
