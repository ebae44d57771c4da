package loop_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
)

// TestProblemLinesAreBounded: a Service of another number of problems each time writes 20 lines in
// 10 s and a line about the rest, and the first problem of another namespace is logged at once.
func TestProblemLinesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r := newRig(t, func(_ *rig, c *loop.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		upsert := func(i int, namespace, annotation string) {
			s := controltest.Service(i)
			s.Namespace, s.Annotations = namespace, map[string]string{annotation: "x"}
			var b tracker.Batch
			b.Upsert(objects.Source{Kind: "test"}, s)
			r.tracker.Apply(&b)
			r.settle()
		}
		const changes = 1200
		began := time.Now()
		for i := range changes {
			upsert(0, "hostile", fmt.Sprint("sluice.dev/x", i))
			if i == changes/2 {
				upsert(1, "honest", "sluice.dev/honest")
			}
			time.Sleep(50 * time.Millisecond)
		}
		intervals := int(time.Since(began)/(10*time.Second)) + 1
		time.Sleep(11 * time.Second) // the last interval ends
		synctest.Wait()
		problems, omitted := strings.Count(log.String(), "msg=problem "), 0
		for line := range strings.Lines(log.String()) {
			var n int
			if _, text, ok := strings.Cut(line, "omitted="); ok {
				if _, err := fmt.Sscan(text, &n); err != nil {
					t.Fatalf("%s: %v", line, err)
				}
				omitted += n
			}
		}
		if problems > 20*intervals+1 || problems < 20*(intervals-1) {
			t.Errorf("%d lines about problems in %d intervals of 10 s", problems, intervals)
		}
		if all := problems + omitted; all != changes+1 {
			t.Errorf("%d problems logged and %d omitted, want %d in all", problems, omitted, changes+1)
		}
		if !strings.Contains(log.String(), "sluice.dev/honest") {
			t.Error("the other namespace's problem is not in the log")
		}
	})
}
