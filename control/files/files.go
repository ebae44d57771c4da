// Package files reads Kubernetes objects from a directory of manifests for kubectl, and reads them
// again when they change.
//
//	directory ──watch, settle──▶ file ──split──▶ documents ──decode──▶ tracker.Batch
//
// It reads v1 Service, v1 Node, discovery.k8s.io/v1 EndpointSlice and v1 List of these, in files
// that end in .yaml, .yml or .json and do not begin with a dot. Other kinds are skipped with a
// warning, so that a directory may hold a whole application. Unlike kubectl, it reads the status of
// a Service: status.loadBalancer.ingress has its VIPs. The Service is served in the address
// families of spec.clusterIPs or, without those, in spec.ipFamilies. Where there are pools, a
// Service of type LoadBalancer whose status has no VIP gets one from a pool (package assign).
//
// Decoding is strict: an unknown or doubled field makes the object malformed.
//
// What must hold:
//   - Everything that one scan of the directory finds is applied in one batch, so that an object
//     which moves between files is never missing.
//   - A file is read once it has stopped changing. If it cannot be parsed, or does not identify its
//     objects, the objects it last had stay; a malformed object in a valid file keeps its last good
//     version; an empty file counts as one that is being written.
//   - Files may be replaced by rename, and the whole directory by a swap of the
//     symbolic link ..data, as kubelet does for a ConfigMap.
package files

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fsnotify/fsnotify"

	"sluice.dev/sluice/allocate/assign"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/internal/heartbeat"
)

// Config configures a Watcher.
type Config struct {
	Log     *slog.Logger
	Dir     string
	Tracker *tracker.Tracker
	// AnyOwner accepts files of any owner, because they are only displayed. Otherwise files and
	// directory are refused if users other than root and this process's user can write them
	// (package trusted).
	AnyOwner bool
	// Addresses, unless nil, decides about the addresses of Services of type LoadBalancer.
	Addresses *assign.Assigner
	// Settle is how long a file must not change before it is read; 0 is 50 ms.
	Settle time.Duration
	// Rescan is the interval of scans without a notification, for filesystems that have none; 0 is
	// 10 s.
	Rescan time.Duration
	// Beats, unless nil, gets the heartbeat of Run.
	Beats *heartbeat.Set
}

// Watcher reads a directory. It is a tracker.Feed.
type Watcher struct {
	Config
	syncs chan chan error
	ended chan struct{}

	// Only Run's goroutine uses these.
	files          map[string]*file // by name
	decide         bool             // addresses are to be decided about again
	unsettledSince time.Time        // zero while nothing is being written
	beat           *heartbeat.Beat
}

// New returns a Watcher, which Run starts.
func New(cfg Config) *Watcher {
	if cfg.Settle == 0 {
		cfg.Settle = 50 * time.Millisecond
	}
	if cfg.Rescan == 0 {
		cfg.Rescan = 10 * time.Second
	}
	return &Watcher{Config: cfg, syncs: make(chan chan error), ended: make(chan struct{}), files: map[string]*file{}}
}

// Source returns the directory.
func (w *Watcher) Source() objects.Source {
	return objects.Source{Kind: objects.Manifests, Path: w.Dir}
}

// ErrEnded is returned by Sync when Run has returned.
var ErrEnded = errors.New("the directory is not watched any more")

// Sync returns nil when everything that was in the directory before the call is in the Tracker, or
// an error if the directory cannot be read.
func (w *Watcher) Sync(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case w.syncs <- answer:
	case <-ctx.Done():
		return ctx.Err()
	case <-w.ended:
		return ErrEnded
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-w.ended:
		return ErrEnded
	}
}

// readerBounds: between two beats one file is decoded. A List of 10,000 Services with 10 endpoints
// each, of 30 MiB, takes 11 s, and a file of maxBytes 100 s.
var readerBounds = heartbeat.Bounds{Unready: 5 * time.Minute, Restart: heartbeat.FileBounds.Restart}

// Run watches until ctx is done. Without notifications, which it logs, it scans every Rescan.
func (w *Watcher) Run(ctx context.Context) error {
	defer close(w.ended)
	w.beat = w.Beats.Add("reader of manifests", readerBounds)
	defer w.Beats.Remove(w.beat)
	events, errs := make(chan fsnotify.Event), make(chan error)
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		w.Log.Warn("no file notifications; changes are found by scanning the directory", "every", w.Rescan, "error",
			err)
	} else {
		defer notify.Close()
		events, errs = notify.Events, notify.Errors
	}
	var decisions <-chan struct{}
	if w.Addresses != nil {
		decisions = w.Addresses.Changed()
	}
	l := scanner{Watcher: w, notify: notify}
	timer, next, settle := time.NewTimer(0), time.Now(), w.Settle
	defer timer.Stop()
	// within makes the next scan begin within d. It delays no scan: a log in the directory causes
	// events without end.
	within := func(d time.Duration) {
		if at := time.Now().Add(d); at.Before(next) {
			next = at
			timer.Reset(d)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-events:
			within(settle)
		case err := <-errs:
			w.Log.Warn("file notifications were lost; the directory is scanned instead", "dir", w.Dir, "error", err)
			within(settle)
		case answer := <-w.syncs:
			l.waiting = append(l.waiting, waiting{answer, time.Now()})
			within(0)
		case <-decisions:
			w.decide = true
			within(0)
		case <-timer.C:
			w.beat.Beat() // a disk or a file server that does not answer blocks a scan
			began := time.Now()
			wait := l.look()
			// Scans use a tenth of a CPU at most, also of 100,000 files and beside constant writes.
			settle = max(w.Settle, 9*time.Since(began))
			next = time.Now().Add(wait)
			timer.Reset(wait)
			w.beat.Rest()
		}
	}
}

// scanner is Run's state between two scans.
type scanner struct {
	*Watcher
	notify  *fsnotify.Watcher // nil without notifications
	failure string
	waiting []waiting
}

// waiting is a caller of Sync.
type waiting struct {
	answer chan error
	since  time.Time
}

// look scans once and returns when to scan again.
func (l *scanner) look() time.Duration {
	if l.notify != nil {
		// Add it each time: a directory that is moved or created again loses its watch. scan
		// reports one that does not exist.
		_ = l.notify.Add(l.Dir)
	}
	unsettled, err := l.scan(time.Now())
	if err != nil {
		if l.failure != err.Error() {
			l.failure = err.Error()
			l.Log.Warn("manifests cannot be read; what was read last stays", "dir", l.Dir, "error", err)
		}
		l.answer(err)
		return min(l.Rescan, time.Second)
	}
	l.failure = ""
	if unsettled {
		return l.Settle
	}
	l.answer(nil)
	return l.Rescan
}

func (l *scanner) answer(err error) {
	for _, w := range l.waiting {
		w.answer <- err
	}
	l.waiting = nil
}
