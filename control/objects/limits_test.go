package objects

import (
	"strings"
	"testing"

	"sluice.dev/sluice/fastpath/services"
)

// TestLimitAnnotations: limits by annotation. One that cannot be read is a problem of its Service,
// and the setting holds.
func TestLimitAnnotations(t *testing.T) {
	for _, tt := range []struct {
		name, value string
		want        uint32
		problem     bool
	}{
		{"a number", "100", 100, false},
		{"spaces around", " 100\n", 100, false},
		{"none", "0", 0, false},
		{"the most", "1000000", services.MaxLimit, false},
		{"one more", "1000001", 0, true},
		{"beyond 32 bits", "4294967297", 0, true},
		{"huge", strings.Repeat("9", 100_000), 0, true},
		{"negative", "-1", 0, true},
		{"a sign", "+1", 0, true},
		{"a fraction", "1.5", 0, true},
		{"a unit", "100r/s", 0, true},
		{"empty", "", 0, true},
		{"control characters", "1\x00\x1b[31m", 0, true},
		{"no UTF-8", "\xff\xfe", 0, true},
		{"underscores", "1_000", 0, true},
		{"hexadecimal", "0x10", 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			configured := services.Limits{
				SourceConnections: 11, SourceNewConnections: 12, Connections: 13, NewConnections: 14,
			}
			for i, annotation := range limitAnnotations {
				var s Service
				s.readLimits(map[string]string{annotation: tt.value})
				got, want := s.Limits.Over(configured), configured
				if !tt.problem { // the annotation overrides the setting, also by 0
					*fieldsOf(&want)[i] = tt.want
				}
				if got != want || len(s.Problems) != 0 != tt.problem {
					t.Errorf("%s: %v, %v", annotation, got, s.Problems)
				}
				for _, p := range s.Problems {
					if strings.ContainsAny(p.Message, "\x00\x1b") || len(p.Message) > 300 ||
						!strings.Contains(p.Field, annotation) || p.Severity != Warning {
						t.Errorf("problem %.300q of %s, %v", p.Message, p.Field, p.Severity)
					}
				}
			}
		})
	}
}
