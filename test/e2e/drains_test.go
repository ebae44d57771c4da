//go:build root

package e2e

import (
	"strings"
	"testing"

	"sluice.dev/sluice/test/bed/topo"
)

// TestDrainsOutliveRestarts: a backend that the operator has drained is drained after a crash, a
// hand-over and a clean stop, until it is undrained, which lasts as well.
func TestDrainsOutliveRestarts(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}, options: handsOver})
	l.damaged = true // the last segments of connections reach a kernel that has no VIP
	backend := at(l.Backends[1].Addr4().String(), backendPort).String()
	l.command("drain", backend)
	cleanStop := func() error {
		l.handOverNoMore()
		return l.gate.Stop()
	}
	restart := func(end func() error) {
		t.Helper()
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := l.gate.Start(l.ctx); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []struct {
		name string
		end  func() error
	}{{"a crash", l.gate.Kill}, {"a hand-over", l.gate.Stop}, {"a clean stop", cleanStop}} {
		restart(r.end)
		if state := l.stateOf(backend); state != "drained" {
			t.Errorf("after %s: %s is %s", r.name, backend, state)
		}
	}
	l.command("undrain", backend)
	restart(l.gate.Kill)
	if state := l.stateOf(backend); state != "ready" {
		t.Errorf("undrained: %s is %s after a crash", backend, state)
	}
}

func (l *lab) command(args ...string) {
	l.t.Helper()
	if out, err := l.gate.Command(l.ctx, args...); err != nil {
		l.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// stateOf returns the state of a backend, one for all of its service ports.
func (l *lab) stateOf(address string) (state string) {
	l.t.Helper()
	list, err := l.gate.Client.Backends(l.ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, b := range list {
		if b.Address.String() != address {
			continue
		}
		if state != "" && b.State != state {
			return state + " and " + b.State
		}
		state = b.State
	}
	return state
}
