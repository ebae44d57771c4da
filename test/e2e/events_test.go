//go:build root

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/journal"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// TestEvents: what an operator and the cluster do, and drops that begin and end, are events in this
// order, each once, also after a hand-over, a kill -9 and a clean stop, and at log level error.
func TestEvents(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2},
		options: handsOver + "log: {level: error}\n"})
	l.damaged = true // the last segments of connections reach a kernel that has no VIP
	backend := at(l.Backends[1].Addr4().String(), backendPort).String()
	l.command("drain", backend)
	l.command("deny", "198.51.100.7", "--for", "1h")
	late := launch.Service{Name: "late", Port: 82, VIPs: []string{vip4}, Endpoints: endpoints(l.Backends[:1]...)}
	for _, change := range []string{"servicesAdded=default/late", "endpointsRemoved="} { // logged once a second
		l.apply(late)
		l.eventually(5*time.Second, change, func() bool {
			return missing(l.events(), []string{"served objects changed " + change}) == ""
		})
		late.Endpoints = nil
	}
	if err := l.reachable(l.Clients[0], at(vip4, 82)); err == nil {
		t.Error("a Service without endpoints was reached")
	}
	want := []string{"forwarding", "backend drained by the operator backend=" + backend,
		"client denied by the operator client=198.51.100.7/32",
		"served objects changed servicesAdded=default/late", "served objects changed endpointsRemoved=",
		"packets are dropped reason=no_endpoints"}
	wantEvents := func() {
		t.Helper()
		if err := topo.Until(l.ctx, 10*time.Second, 100*time.Millisecond, func(context.Context) error {
			if m := missing(l.events(), want); m != "" {
				return fmt.Errorf("no %q after the events before it in:\n%+v", m, l.events())
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	wantEvents()
	if err := l.gate.WriteConfiguration(l.gate.Configuration() + "limits: {connections: -1}\n"); err != nil {
		t.Fatal(err)
	}
	want = append(want, "configuration is refused")
	wantEvents()
	cleanStop := func() error {
		l.handOverNoMore()
		return l.gate.Stop()
	}
	started := 1
	for _, r := range []struct {
		name, want string
		end        func() error
	}{
		{"a hand-over", "handing over: flows", l.gate.Stop}, {"a crash", "", l.gate.Kill},
		{"a clean stop", "stopped, the node is clean", cleanStop},
	} {
		if err := l.gate.WriteConfiguration(strings.ReplaceAll(l.gate.Configuration(),
			"limits: {connections: -1}\n", "")); err != nil {
			t.Fatal(err)
		}
		if err := r.end(); err != nil {
			t.Fatal(err)
		}
		if err := l.gate.Start(l.ctx); err != nil {
			t.Fatal(err)
		}
		if r.want != "" {
			want = append(want, r.want)
		}
		want, started = append(want, "forwarding"), started+1
		wantEvents()
		l.within("the last event is in the file after "+r.name, func() bool { // which a killed process leaves
			text, err := os.ReadFile(filepath.Join(l.gate.StateDir(), journal.Name))
			return err == nil && strings.Count(string(text), `"msg":"forwarding"`) == started
		})
	}
	list := l.events()
	for i := range list[1:] {
		if !list[i+1].Time.After(list[i].Time) {
			t.Errorf("event %d is of %v, and the next one of %v", i, list[i].Time, list[i+1].Time)
		}
	}
	drained := 0
	for i := range list {
		if strings.HasPrefix(list[i].Message, "backend drained") {
			drained++
		}
	}
	if drained != 1 {
		t.Errorf("the drain is %d events", drained)
	}
	out, err := l.gate.Command(l.ctx, "events", "--since", "1h")
	if err != nil || !strings.Contains(out, "client denied by the operator") {
		t.Errorf("sluice events: %v\n%s", err, out)
	}
	if t.Failed() {
		t.Log(out)
	}
	l.command("undrain", backend) // both would stay in files
	l.command("deny", "remove", "198.51.100.7")
}

func (l *lab) events() []status.EventView {
	l.t.Helper()
	list, err := l.gate.Client.Events(l.ctx, time.Time{})
	if err != nil {
		l.t.Fatal(err)
	}
	return list
}

// missing returns the first of the texts that no event has after the events of those before it; ""
// if all are there. A text is the beginning of a message and, after it, the beginning of a detail.
func missing(list []status.EventView, texts []string) string {
	for _, text := range texts {
		message, detail := text, ""
		if key := strings.Index(text, "="); key >= 0 {
			space := strings.LastIndex(text[:key], " ")
			message, detail = text[:space], text[space+1:]
		}
		at := -1
		for i := range list {
			if strings.HasPrefix(list[i].Message, message) && hasDetail(&list[i], detail) {
				at = i
				break
			}
		}
		if at < 0 {
			return text
		}
		list = list[at+1:]
	}
	return ""
}

func hasDetail(e *status.EventView, text string) bool {
	for key, value := range e.Details {
		if strings.HasPrefix(fmt.Sprintf("%s=%s", key, value), text) {
			return true
		}
	}
	return text == ""
}
