package loop_test

import (
	"bytes"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
)

// lines returns the lines of the log about what is served, without time and level, and empties it.
func lines(b *bytes.Buffer) (list []string) {
	for _, line := range strings.Split(b.String(), "\n") {
		if _, text, ok := strings.Cut(line, "msg="); ok && regexp.MustCompile(`^"(first table|served objects)`).MatchString(text) {
			list = append(list, text)
		}
	}
	b.Reset()
	return list
}

// TestChangesAreLogged: a Service and an endpoint that come or go leave a line, the first table one
// line for all of it, and a change that changes nothing of what is served none.
func TestChangesAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		missing := error(objectsMissing{})
		r := newRig(t, func(r *rig, c *loop.Config) {
			c.Log = slog.New(slog.NewTextHandler(&log, nil))
			r.feed.err.Store(&missing)
		})
		for i := range 5 {
			r.add(i)
		}
		r.feed.err.Store(nil)
		expect := func(what string, want ...string) {
			t.Helper()
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if got := lines(&log); strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		n := len(controltest.Slice(0, 0).Endpoints)
		if n < 2 {
			t.Fatalf("a slice has %d endpoints", n)
		}
		expect("start", `"first table" services=5 readyEndpoints=`+strconv.Itoa(5*n))

		slice := controltest.Slice(1, 0)
		first := slice.Endpoints[0].Addresses[0] + ":" + strconv.Itoa(int(*slice.Ports[0].Port))
		slice.Endpoints = slice.Endpoints[1:]
		upsert := func(o *discoveryv1.EndpointSlice) {
			var b tracker.Batch
			b.Upsert(objects.Source{Kind: "test"}, o)
			r.tracker.Apply(&b)
			r.settle()
		}
		upsert(slice)
		expect("removed", `"served objects changed" endpointsRemoved=`+first+` endpointsOf=bench/service-1`)
		unready, no := slice.DeepCopy(), false
		second := slice.Endpoints[0].Addresses[0] + ":" + strconv.Itoa(int(*slice.Ports[0].Port))
		unready.Endpoints[0].Conditions.Ready = &no
		upsert(unready)
		expect("not ready", `"served objects changed" endpointsRemoved=`+second+` endpointsOf=bench/service-1`)
		upsert(slice)
		expect("ready", `"served objects changed" endpointsAdded=`+second+` endpointsOf=bench/service-1`)
		slice = slice.DeepCopy()
		slice.Annotations = map[string]string{"sluice.dev/weights": "10.0.0.0/8=2"}
		upsert(slice)
		expect("weights")
		r.remove(2)
		expect("Service removed", `"served objects changed" servicesRemoved=bench/service-2`)
		r.end()
		<-r.ended
	})
}

// TestFlappingIsSummedUp: an object that changes all the time leaves a line a second.
func TestFlappingIsSummedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r := newRig(t, func(_ *rig, c *loop.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		r.add(1)
		time.Sleep(2 * time.Second)
		lines(&log)
		for range 500 { // 10 s of the bubble's clock
			r.remove(1)
			r.add(1)
		}
		got := lines(&log)
		if len(got) < 9 || len(got) > 11 {
			t.Fatalf("%d lines in 10 seconds: %q", len(got), got)
		}
		if last := got[len(got)-1]; !strings.Contains(last, " more") || len(last) > 300 {
			t.Errorf("no sum, or a long line: %q", last)
		}
		r.end()
		<-r.ended
	})
}

type objectsMissing struct{}

func (objectsMissing) Error() string { return "not yet" }
