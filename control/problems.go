package control

// Problems returns all outstanding problems, which nobody may write to, and a channel
// that is closed when there may be others. It may be called from any goroutine.
func (l *Loop) Problems() ([]Problem, <-chan struct{}) {
	l.progress.mu.Lock()
	defer l.progress.mu.Unlock()
	return l.progress.problems, l.progress.changed
}
