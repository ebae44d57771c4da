package thread

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestPoll: Poll returns at once if a file is ready, and otherwise waits for the given time.
func TestPoll(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	files := []unix.PollFd{{Fd: int32(r.Fd()), Events: unix.POLLIN}}
	began := time.Now()
	n, err := Poll(files, Moment)
	if took := time.Since(began); n != 0 || err == nil && took < Moment {
		t.Errorf("nothing is ready: %d, %v after %v", n, err, took)
	}
	if _, err := w.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	n, err = Poll(files, Moment)
	for err == unix.EINTR { // by a signal of the Go runtime
		n, err = Poll(files, Moment)
	}
	if n != 1 || err != nil || files[0].Revents != unix.POLLIN {
		t.Errorf("one is ready: %d, %v, events %#x", n, err, files[0].Revents)
	}
}

// TestQuietNap: a nap has the requested length, unless a signal ends it.
func TestQuietNap(t *testing.T) {
	const long = 3 * time.Millisecond
	for range 10 {
		began := time.Now()
		if QuietNap(long); time.Since(began) >= long {
			return
		}
	}
	t.Errorf("ten naps were shorter than %v", long)
}
