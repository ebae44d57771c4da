package objects

import (
	"strconv"
	"strings"

	"sluice.dev/sluice/fastpath/services"
)

// Limits are the limits that a Service sets by annotation. The configuration has the others (Over).
type Limits struct {
	limits services.Limits
	set    [len(limitAnnotations)]bool
}

// Over returns the limits in force where the configuration has these.
func (l *Limits) Over(limits services.Limits) services.Limits {
	own := l.limits
	from, to := fieldsOf(&own), fieldsOf(&limits)
	for i, set := range l.set {
		if set {
			*to[i] = *from[i]
		}
	}
	return limits
}

// The annotations of a Service with its limits, each a number from 0, which is no limit, to
// services.MaxLimit. Each port of the Service has its own count.
var limitAnnotations = [4]string{
	"sluice.dev/limit-connections-per-source",
	"sluice.dev/limit-new-connections-per-source",
	"sluice.dev/limit-connections",
	"sluice.dev/limit-new-connections",
}

// fieldsOf returns the limits in the order of limitAnnotations.
func fieldsOf(l *services.Limits) [len(limitAnnotations)]*uint32 {
	return [...]*uint32{&l.SourceConnections, &l.SourceNewConnections, &l.Connections, &l.NewConnections}
}

// readLimits reads the annotations for limits. It ignores invalid ones with a warning.
func (s *Service) readLimits(annotations map[string]string) {
	fields := fieldsOf(&s.Limits.limits)
	for i, name := range limitAnnotations {
		text, ok := annotations[name]
		if !ok {
			continue
		}
		// ParseUint takes no sign, and with base 10 no underscores.
		n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 32)
		if err == nil && n <= services.MaxLimit {
			*fields[i], s.Limits.set[i] = uint32(n), true
			continue
		}
		s.Problems = append(s.Problems, warn("metadata.annotations["+name+"]",
			"%q is no number from 0 to %d; the limit of the configuration holds", text, services.MaxLimit))
	}
}
