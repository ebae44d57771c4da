package logs

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestLimit: of 1,000 lines in 10 s, 3 are written in each second, and a later line has the number
// of omitted ones.
func TestLimit(t *testing.T) {
	var out bytes.Buffer
	log, limit := slog.New(slog.NewTextHandler(&out, nil)), &Limit{PerSecond: 3}
	now := time.Unix(1, 0)
	for i := range 1000 {
		limit.Info(log, now.Add(time.Duration(i)*10*time.Millisecond), "x", "number", i)
	}
	if n := strings.Count(out.String(), "msg=x"); n != 30 {
		t.Errorf("%d lines, want 30", n)
	}
	out.Reset()
	limit.Warn(log, now.Add(time.Minute), "x")
	limit.Info(log, now.Add(time.Minute), "x")
	if text := out.String(); strings.Count(text, "omittedBefore") != 1 || !strings.Contains(text, "omittedBefore=97") ||
		strings.Count(text, "level=WARN") != 1 {
		t.Errorf("%q, want 97 omitted lines in the first of two", text)
	}
}
