package loop

import (
	"log/slog"
	"time"

	"sluice.dev/sluice/control/objects"
)

// Bounds of the lines about problems per problemInterval: in total, and half of the total for
// objects of one namespace.
const (
	problemInterval   = 10 * time.Second
	maxProblemLines   = 40
	maxNamespaceLines = maxProblemLines / 2
)

// problemLog writes a line for each new problem. A tenant can cause any number of problems at any
// rate, so the lines of an interval are bounded, and one more line has the number of omitted ones.
// Its memory is bounded: it counts lines by namespace, of one interval.
type problemLog struct {
	log         *slog.Logger
	began       time.Time // the interval
	lines       int       // in it
	byNamespace map[string]int
	omitted     int // not reported yet
}

// write writes the new problems.
func (g *problemLog) write(news []objects.Problem, now time.Time) {
	g.flush(now)
	for i := range news {
		q := &news[i]
		if g.lines >= maxProblemLines || g.byNamespace[q.Object.Namespace] >= maxNamespaceLines {
			g.omitted++
			continue
		}
		g.lines++
		g.byNamespace[q.Object.Namespace]++
		g.log.Warn("problem", "severity", q.Severity, "problem", q.String())
	}
}

// flush begins the next interval if it is time, and writes how many problems the last one omitted.
func (g *problemLog) flush(now time.Time) {
	if now.Sub(g.began) < problemInterval {
		return
	}
	g.began, g.lines, g.byNamespace = now, 0, map[string]int{}
	if g.omitted > 0 {
		g.log.Warn("more problems came than are logged; sluice status lists those that are outstanding", "omitted",
			g.omitted)
		g.omitted = 0
	}
}
