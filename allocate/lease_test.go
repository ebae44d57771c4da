package allocate

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// fakeLock is a Lease in memory.
type fakeLock struct {
	resourcelock.Interface
	record resourcelock.LeaderElectionRecord
	err    error
	during func() // called during a request
}

func (f *fakeLock) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if f.err != nil {
		return nil, nil, f.err
	}
	record := f.record
	return &record, nil, nil
}

func (f *fakeLock) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	if f.during != nil {
		f.during()
	}
	if f.err == nil {
		f.record = record
	}
	return f.err
}

func (f *fakeLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return f.Update(ctx, record)
}

func (f *fakeLock) Identity() string { return "me" }

type leaseTest struct {
	*testing.T
	lock *fakeLock
	now  time.Time
	*lease
}

func newLeaseTest(t *testing.T) *leaseTest {
	l := &leaseTest{T: t, lock: &fakeLock{}, now: time.Unix(1000, 0)}
	l.lease = &lease{Interface: l.lock, renewWithin: 10 * time.Second, now: func() time.Time { return l.now }}
	return l
}

func (l *leaseTest) hold(who string) error {
	return l.Update(l.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: who})
}

func (l *leaseTest) look() {
	_, _, _ = l.Get(l.Context())
}

func (l *leaseTest) want(valid bool, when string) {
	l.Helper()
	if l.valid() != valid {
		l.Errorf("%s: valid is %v", when, !valid)
	}
}

func TestLeaseIsGoodForAWhile(t *testing.T) {
	t.Parallel()
	l := newLeaseTest(t)
	l.want(false, "before it is held")
	l.lock.during = func() { l.now = l.now.Add(4 * time.Second) } // a slow answer: validity starts at the request
	if err := l.hold("me"); err != nil {
		t.Fatal(err)
	}
	l.want(true, "held")
	l.now = l.now.Add(5 * time.Second)
	l.want(true, "9 s after the request")
	l.now = l.now.Add(2 * time.Second)
	l.want(false, "11 s after the request")
	l.lock.during = nil
	if err := l.hold("me"); err != nil {
		t.Fatal(err)
	}
	l.want(true, "renewed, and nobody else had it")
	l.lock.err = errors.New("away")
	if err := l.hold("me"); err == nil {
		t.Error("renewed without an API server")
	}
	l.want(true, "a renewal failed, the one before is still good")
}

func TestLostLeaseStaysLost(t *testing.T) {
	t.Parallel()
	for _, holder := range []string{"other", ""} { // another process leads, or has led and released
		l := newLeaseTest(t)
		if err := l.hold("me"); err != nil {
			t.Fatal(err)
		}
		l.lock.record.HolderIdentity = holder
		l.look()
		l.want(false, "after it was seen with "+holder)
		if err := l.hold("me"); !errors.Is(err, ErrLeaseLost) {
			t.Errorf("taken again from %q: %v", holder, err)
		}
		l.want(false, "after it was tried again")
	}
}

func TestGivingUpALease(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare func(*leaseTest)
		refused bool
	}{
		"before the term has ended": {func(*leaseTest) {}, true},
		"after the term has ended":  {func(l *leaseTest) { l.end() }, false},
		"with a write in doubt":     {func(l *leaseTest) { l.doubt(); l.end() }, true},
		"with no doubt any more":    {func(l *leaseTest) { l.doubt(); l.trust(); l.end() }, false},
		"after somebody else had it": {func(l *leaseTest) {
			l.lock.record.HolderIdentity = "x"
			l.look()
			l.end()
		}, true},
		"after it was given up twice": {func(l *leaseTest) { l.end(); _ = l.hold("") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLeaseTest(t)
			if err := l.hold("me"); err != nil {
				t.Fatal(err)
			}
			test.prepare(l)
			if err := l.hold(""); (err != nil) != test.refused {
				t.Errorf("given up: %v", err)
			}
			l.want(false, "after it")
		})
	}
}

func TestHandedOver(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		holder string
		err    error
		want   bool
	}{
		"given up": {holder: "", want: true}, "expired": {holder: "other"},
		"deleted, or the first": {err: errors.New("not found")},
	} {
		l := newLeaseTest(t)
		l.lock.record.HolderIdentity, l.lock.err = test.holder, test.err
		l.look()
		l.lock.err = nil
		if err := l.hold("me"); err != nil {
			t.Fatal(err)
		}
		l.look()
		if l.handedOver() != test.want {
			t.Errorf("%s: handed over is %v", name, !test.want)
		}
	}
}
