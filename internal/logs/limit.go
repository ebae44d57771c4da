package logs

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Limit bounds log lines that tenants' objects, or hosts of the network, can cause at any rate, to
// PerSecond in each second. The next line has the number of omitted lines. It is safe for
// concurrent use.
type Limit struct {
	PerSecond int

	mu      sync.Mutex
	began   time.Time // of the present second
	lines   int       // in the present second
	omitted int       // not reported yet
}

// Info writes a line at level info, or only counts it.
func (l *Limit) Info(log *slog.Logger, now time.Time, message string, attributes ...any) {
	l.write(log, slog.LevelInfo, now, message, attributes)
}

// Warn is Info for a line at level warn.
func (l *Limit) Warn(log *slog.Logger, now time.Time, message string, attributes ...any) {
	l.write(log, slog.LevelWarn, now, message, attributes)
}

func (l *Limit) write(log *slog.Logger, level slog.Level, now time.Time, message string, attributes []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.began) >= time.Second {
		l.began, l.lines = now, 0
	}
	if l.lines >= l.PerSecond {
		l.omitted++
		return
	}
	l.lines++
	if l.omitted > 0 {
		attributes = append(attributes, "omittedBefore", l.omitted)
		l.omitted = 0
	}
	log.Log(context.Background(), level, message, attributes...)
}
