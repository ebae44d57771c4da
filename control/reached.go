package control

import "time"

// Reached says how far the loop is: what the Tracker has read, how much of that is
// published and steered by, and when it became so; the zero time before the first
// snapshot. It is cheap and may be called from any goroutine.
func (l *Loop) Reached() (read, applied uint64, at time.Time) {
	read = l.Tracker.Read()
	l.progress.mu.Lock()
	defer l.progress.mu.Unlock()
	return read, l.progress.applied, l.progress.at
}

// Refusal is what the kernel program does not steer by, and why; nil if it does all that
// was asked of it. It may be called from any goroutine.
func (l *Loop) Refusal() error {
	l.progress.mu.Lock()
	defer l.progress.mu.Unlock()
	return l.progress.refusal
}
