package conformance

import (
	"flag"
	"strings"
	"testing"

	"sluice.dev/sluice/test/bed/pagetest"
)

var update = flag.Bool("update", false, "rewrite cases.md and the tables of docs/conformance.md")

// TestTables: cases.md and the tables of docs/conformance.md agree with the cases and the listed
// differences.
func TestTables(t *testing.T) {
	known, err := rows(document)
	if err != nil {
		t.Fatal(err)
	}
	want := tables(all(), append(known, prose...))
	if strings.Contains(want, "no such probe") {
		t.Error("a listed difference names no probe")
	}
	for path, want := range map[string]string{
		"../../docs/conformance.md": want, "cases.md": listing(all(), append(known, prose...)),
	} {
		pagetest.Keep(t, path, "<!-- Written by make -C test conformance-doc. -->\n", "", want, *update,
			"make -C test conformance-doc")
	}
}

// TestIPVSSubset: the subset is what docs/conformance.md says, and nothing is listed of what is not
// run.
func TestIPVSSubset(t *testing.T) {
	run, left := map[string]bool{}, map[string]bool{}
	for _, c := range all() {
		run[c.ID()] = c.leftOut(ipvs) == ""
		for _, s := range c.steps {
			for _, p := range s.probes {
				r := &result{c: c, s: s, p: p}
				left[r.key()] = !run[c.ID()] || p.unasked != ""
			}
		}
		if c.leftOut(nftables) != "" || c.leftOut("") != "" {
			t.Errorf("%s is left out of other modes", c.ID())
		}
	}
	for id, want := range map[string]bool{
		"Service/externalTrafficPolicy/local":                     true,
		"Different on purpose/VIPs answer ping/ping":              true,
		"EndpointSlice/addressType/host-names":                    false,
		"Affinity/each new flow starts the time anew/slides":      false,
		"On the wire/VLAN tags/no-device":                         false,
		"On the wire/VLAN tags/priority-alone":                    false,
		"Whose address/ClusterIP/nobody-is-a-pod":                 false,
		"Choosing a backend/maglev/maglev":                        false,
		"Service/healthCheckNodePort/comes-and-goes":              false,
		"Different on purpose/An unanswered SYN/its-client-moves": false,
	} {
		if got, ok := run[id]; got != want || !ok {
			t.Errorf("%s is run: %t, known: %t", id, got, ok)
		}
	}
	for _, id := range ipvsCases {
		if !run[id] {
			t.Errorf("chosen for ipvs, and not run: %s", id)
		}
	}
	for _, d := range differences {
		if d.ipvs != "" && left[d.where] {
			t.Errorf("listed for ipvs, and not asked there: %s", d.where)
		}
	}
}

// Outcomes are compared as text, so the text must say everything.
func TestOutcome(t *testing.T) {
	gateway := func(a string) bool { return a == "10.72.0.1" }
	from := func(backend, source string) answer {
		return answer{backend: backend, source: source, client: "10.71.0.10"}
	}
	of := func(backend, client string) answer {
		return answer{backend: backend, source: "10.72.0.1", client: client}
	}
	for _, tc := range []struct {
		name    string
		answers []answer
		as      manner
		want    string
	}{
		{"two backends", []answer{from("b1", "10.72.0.1"), from("b0", "10.72.0.1"), from("b1", "10.72.0.1")}, who,
			"b0 b1 from gateway"},
		{"the client's address", []answer{from("b0", "10.71.0.10")}, who, "b0 from client"},
		{"both addresses", []answer{from("b0", "10.71.0.10"), from("b0", "10.72.0.1")}, who, "b0 from client, gateway"},
		{"somebody else's", []answer{from("b0", "192.0.2.1")}, who, "b0 from 192.0.2.1"},
		{"sticks", []answer{from("b0", "10.72.0.1"), from("b0", "10.72.0.1")}, whetherOne, "one from gateway"},
		{"does not stick", []answer{from("b0", "10.72.0.1"), from("b1", "10.72.0.1"), from("b0", "10.72.0.1")},
			whetherOne, "several from gateway"},
		{"one for each", []answer{of("b0", "10.71.0.50"), of("b1", "10.71.0.51"), of("b0", "10.71.0.50")}, oneForEach,
			"one for each client from gateway"},
		{"several for one", []answer{of("b0", "10.71.0.50"), of("b1", "10.71.0.50")}, oneForEach,
			"several for one client from gateway"},
		{"turns", []answer{from("b1", "10.72.0.1"), from("b0", "10.72.0.1"), from("b1", "10.72.0.1")}, howOften,
			"b0 1×, b1 2× from gateway"},
		{"in turn", []answer{from("b1", "10.72.0.1"), from("b0", "10.72.0.1"), from("b1", "10.72.0.1")}, inTurn,
			"b0 b1 in turn from gateway"},
		{"not in turn", []answer{from("b1", "10.72.0.1"), from("b0", "10.72.0.1"), from("b0", "10.72.0.1")}, inTurn,
			"b0 b1 not in turn from gateway"},
		{"refused", []answer{{verdict: reject}, {verdict: reject}}, who, "reject"},
		{"some of both", []answer{from("b0", "10.71.0.10"), {verdict: drop}, {verdict: reject}}, who,
			"b0 from client; drop; reject"},
	} {
		if got := outcome(tc.answers, tc.as, gateway); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}
