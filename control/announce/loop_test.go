package announce

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// busy is a Source whose objects change all the time, for a while.
type busy struct {
	during time.Duration
	asked  atomic.Int64
	done   chan struct{}
}

func (b *busy) Run(_ context.Context, changed func()) {
	defer close(b.done)
	for end := time.Now().Add(b.during); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		changed()
	}
}

func (b *busy) Objects() (*Objects, string) {
	b.asked.Add(1)
	return &Objects{}, ""
}

// TestChangesAreGathered: however often objects change, they are read some twenty times a second.
func TestChangesAreGathered(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := &busy{during: 500 * time.Millisecond, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	begin := time.Now()
	go func() {
		defer close(ended)
		New(Config{Log: slog.New(slog.DiscardHandler), Source: b, State: filepath.Join(dir, "announced.json"),
			Gateway: filepath.Join(dir, "pulse.sock")}).Run(ctx)
	}()
	<-b.done
	asked, most := b.asked.Load(), int64(time.Since(begin)/gather)+5 // the first, the gateway's, a tick
	if asked < 2 || asked > most {
		t.Errorf("objects were read %d times, want %d at most", asked, most)
	}
	cancel()
	<-ended
}
