package model

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sluice.dev/sluice/test/bed/size"
)

// mostStates bounds the memory of an exploration to some 3 GB. Only large ones reach it: these then
// visit the states that are nearest to the initial one.
const mostStates = 20_000_000

// portBounds are explored completely; large ones only if SLUICE_FAULT_RUNS is set, and up to
// mostStates.
var portBounds = []struct {
	name  string
	large bool
	bounds
}{
	{"one member, a port at each address, any number of failures", false,
		bounds{members: 1, slots: 2, ports: [addresses]int{1, 1}, queue: 2, failures: -1}},
	{"one member, two ports at one address, two failures", false,
		bounds{members: 1, slots: 2, ports: [addresses]int{2, 0}, queue: 2, failures: 2}},
	{"two members, one port, two failures", false,
		bounds{members: 2, slots: 1, ports: [addresses]int{1, 0}, queue: 2, failures: 2}},
	{"one member, two ports at one address, any number of failures", true,
		bounds{members: 1, slots: 2, ports: [addresses]int{2, 0}, queue: 3, failures: -1}},
	{"one member, two ports and one, three failures", true,
		bounds{members: 1, slots: 3, ports: [addresses]int{2, 1}, queue: 2, failures: 3}},
	{"two members, a port at each address, two failures", true,
		bounds{members: 2, slots: 2, ports: [addresses]int{1, 1}, queue: 2, failures: 2}},
}

// TestPorts explores the model of ports with all rules: there is no violation.
func TestPorts(t *testing.T) {
	taken := map[string]bool{}
	for _, c := range portBounds {
		if c.large && size.Runs(t, 0, 1) == 0 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			r := explore(&portModel{bounds: c.bounds}, mostStates)
			report(t, r, c.large)
			maps.Copy(taken, r.taken)
		})
	}
	compareEvents(t, taken, portEvents)
}

// TestHandshakes explores the model of handshakes with all rules: there is no violation.
func TestHandshakes(t *testing.T) {
	taken := map[string]bool{}
	for _, c := range []struct {
		name  string
		large bool
		m     handshakeModel
	}{
		{"two gateways, three SYNs, one failure", false, handshakeModel{gateways: 2, syns: 3, failures: 1}},
		{"three gateways, two SYNs, one failure", false, handshakeModel{gateways: 3, syns: 2, failures: 1}},
		{"three gateways, three SYNs, one failure", true, handshakeModel{gateways: 3, syns: 3, failures: 1}},
	} {
		if c.large && size.Runs(t, 0, 1) == 0 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			r := explore(&c.m, mostStates)
			report(t, r, c.large)
			maps.Copy(taken, r.taken)
		})
	}
	compareEvents(t, taken, handshakeEvents)
}

// report fails for a violation, and logs how much was explored.
func report(t *testing.T, r result, large bool) {
	t.Helper()
	if r.violation != "" || !r.complete && !large {
		t.Errorf("after %d states: %s\n%s", r.states, r.violation, numbered(r.trace))
	}
	t.Logf("%d states, complete %t, up to %d events from the initial one", r.states, r.complete, r.depth)
}

func numbered(trace []string) string {
	var b strings.Builder
	for i, event := range trace {
		b.WriteString("\t" + strconv.Itoa(i+1) + "\t" + event + "\n")
	}
	return b.String()
}

// compareEvents: an event that never happens would make the exploration say less than it seems to.
func compareEvents(t *testing.T, taken map[string]bool, want []string) {
	t.Helper()
	if got := slices.Sorted(maps.Keys(taken)); !slices.Equal(got, want) {
		t.Errorf("events that led to a new state:\n\t%s", strings.Join(got, "\n\t"))
	}
}

// TestPortRules takes out each rule of the model of ports: a violation is found. steps is the
// length of the shortest trace.
func TestPortRules(t *testing.T) {
	single := bounds{members: 1, slots: 2, ports: [addresses]int{1, 1}, queue: 2, failures: 3}
	twoPorts := bounds{members: 1, slots: 2, ports: [addresses]int{2, 0}, queue: 2, failures: 2}
	pair := bounds{members: 2, slots: 1, ports: [addresses]int{1, 0}, queue: 2, failures: 2}
	for _, c := range []struct {
		name    string
		without rule
		bounds  bounds
		broken  string
		steps   int
	}{
		{"the port of an ended flow is free at once", holdPort, single, "MISDELIVERED", 5},
		{"only members in step hold a port", holdForLost, single, "MISDELIVERED", 8},
		{"any acknowledgement about the slot frees a port", lastMessage, twoPorts, "MISDELIVERED", 10},
		{"an acknowledgement before AllDone frees a port", allDoneFirst, twoPorts, "MISDELIVERED", 13},
		{"a killed owner forgets held ports", keepHeld, single, "MISDELIVERED", 7},
		{"a restarted owner sends before it takes back", takeBack, single, "LOST", 8},
		{"an owner without memory takes ports of its open address", useSpare, single, "MISDELIVERED", 6},
		{"an address with flows becomes a spare", cleanSpare, single, "MISDELIVERED", 9},
		{"a member forgets an owner that it does not hear", keepCopies, single, "LOST", 7},
		{"a member answers with RST before the owner is complete", sayComplete, pair, "LOST", 16},
		{"the SYN-ACK does not wait for the copy", waitForCopy, single, "LOST", 2},
		{"the owner stops waiting before the lease has run out", waitForLease, pair, "LOST", 7},
		{"an AllDone after the lease brings a member in step", leaseOfStream, pair, "LOST", 21},
		{"the owner does not wait for a member that joins", waitForJoiner, pair, "LOST", 13},
	} {
		t.Run(c.name, func(t *testing.T) {
			fails(t, explore(&portModel{c.bounds, c.without}, mostStates), c.broken, c.steps)
		})
	}
}

// TestHandshakeRules takes out each rule of the model of handshakes: a violation is found.
func TestHandshakeRules(t *testing.T) {
	for _, c := range []struct {
		name               string
		without            rule
		gateways, failures int
		broken             string
		steps              int
	}{
		{"the SYN-ACK does not wait for the copies", copyFirst, 2, 1, "LOST", 4},
		{"both flows of a client stay", oneWins, 2, 0, "STALLED", 12},
		{"the lower gateway's flow wins even if the other's SYN-ACK has left", leftStays, 2, 1, "ENDED", 7},
		{"a copy is replaced by the record of a third gateway", firstStays, 3, 1, "STALLED", 15},
		{"an unproven flow passes every segment", proveSegments, 3, 1, "WRONG BACKEND", 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := handshakeModel{gateways: c.gateways, syns: 2, failures: c.failures, without: c.without}
			fails(t, explore(&m, mostStates), c.broken, c.steps)
		})
	}
}

// fails asserts that an exploration found a violation of a kind, and logs its trace.
func fails(t *testing.T, r result, broken string, steps int) {
	t.Helper()
	if !strings.HasPrefix(r.violation, broken+":") {
		t.Fatalf("%d states, violation %q, want %s\n%s", r.states, r.violation, broken, numbered(r.trace))
	}
	if n := len(r.trace) - 1; n != steps {
		t.Errorf("the trace has %d events, want %d", n, steps)
	}
	t.Logf("after %d states:\n%s", r.states, numbered(r.trace))
}

// TestRandom walks at random through larger bounds, with any number of failures: the model of ports
// with three gateways, and that of handshakes.
func TestRandom(t *testing.T) {
	walks := size.Runs(t, 2_000, 5_000)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	ports := &portModel{bounds: bounds{members: 2, slots: 3, ports: [addresses]int{2, 1}, queue: 3, failures: -1}}
	handshakes := &handshakeModel{gateways: 3, syns: 4, failures: 1}
	events := 0
	for range walks {
		for _, r := range []result{walk(ports, random, 200), walk(handshakes, random, 200)} {
			events += r.states
			if r.violation != "" {
				t.Fatalf("%s\n%s", r.violation, numbered(r.trace))
			}
		}
	}
	t.Logf("%d walks of each model, %d events, no violation", walks, events)
}

// TestExplore: the explorer finds the shortest way to a violation, and no violation where there is
// none.
func TestExplore(t *testing.T) {
	r := explore[int](counter{broken: 5}, mostStates)
	if want := []string{"add 1", "add 1", "double to 4", "add 1", "BROKEN: 5"}; !slices.Equal(r.trace, want) {
		t.Errorf("trace %q, want %q", r.trace, want)
	}
	if r := explore[int](counter{broken: -1}, mostStates); r.states != 100 || !r.complete || r.violation != "" {
		t.Errorf("%+v, want 100 states, complete", r)
	}
	if r := explore[int](counter{broken: -1}, 50); r.complete || r.states < 50 {
		t.Errorf("%+v, want 50 states at least, incomplete", r)
	}
}
