package status_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
)

// TestParseExplain: what a question may look like, and what is wrong with one.
func TestParseExplain(t *testing.T) {
	for _, c := range []struct {
		from, to    string
		established bool
		want        string // from, to, protocol, or part of the error
	}{
		{"198.51.100.7:40000", "203.0.113.10:80/TCP", false, "198.51.100.7:40000 203.0.113.10:80 TCP"},
		{"198.51.100.7:40000", "203.0.113.10:80", true, "198.51.100.7:40000 203.0.113.10:80 TCP"},
		{"198.51.100.7", "203.0.113.10:80/udp", false, "198.51.100.7:50000 203.0.113.10:80 UDP any port"},
		{"[2001:db8::7]:1", "[2001:db8::10]:80/sctp", false, "[2001:db8::7]:1 [2001:db8::10]:80 SCTP"},
		{"2001:db8::7", "[2001:db8::10]:80", false, "[2001:db8::7]:50000 [2001:db8::10]:80 TCP any port"},
		{"[2001:db8::7]", "[2001:db8::10]:80", false, "[2001:db8::7]:50000 [2001:db8::10]:80 TCP any port"},
		{"::ffff:198.51.100.7", "203.0.113.10:80", false, "198.51.100.7:50000 203.0.113.10:80 TCP any port"},
		{"198.51.100.7", "203.0.113.10", false, "is not an address and port"},
		{"198.51.100.7", "203.0.113.10:80/ICMP", false, "none of TCP, UDP and SCTP"},
		{"198.51.100.7", "203.0.113.10:80/", false, "none of TCP, UDP and SCTP"},
		{"web", "203.0.113.10:80", false, "is no address or address:port"},
		{"2001:db8::7", "203.0.113.10:80", false, "of two families"},
		{"fe80::1%eth0", "[2001:db8::10]:80", false, "has a zone"},
		{"198.51.100.7:1", "203.0.113.10:53/UDP", true, "UDP has no connections"},
		{"198.51.100.7", "203.0.113.10:80", true, "identified by its port"},
	} {
		q, err := status.ParseExplain(c.from, c.to, c.established)
		got := q.From.String() + " " + q.To.String() + " " + q.Protocol
		if q.AnyPort {
			got += " any port"
		}
		if err != nil {
			got = err.Error()
		}
		if err == nil && got != c.want || err != nil && !strings.Contains(got, c.want) ||
			q.Established != c.established {
			t.Errorf("%s -> %s: %q, want %q", c.from, c.to, got, c.want)
		}
	}
}

// TestExplainOverTheSocket: the request reaches the daemon as sent, and its answer comes back.
func TestExplainOverTheSocket(t *testing.T) {
	g := statustest.New()
	c, _ := serve(t, g)
	for from, established := range map[string]bool{"198.51.100.7:40000": true, "198.51.100.7": false} {
		q, err := status.ParseExplain(from, "203.0.113.10:80/SCTP", established)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := g.Explain(&q)
		got, err := c.Explain(t.Context(), &q)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v\ngot  %+v\nwant %+v", from, err, got, want)
		}
	}
	q := status.ExplainQuery{Protocol: "GRE"}
	if _, err := c.Explain(t.Context(), &q); err == nil || !strings.Contains(err.Error(), "none of TCP, UDP and SCTP") {
		t.Errorf("a bad question: %v", err)
	}
	g.Err = errors.New("the daemon is ending")
	q, _ = status.ParseExplain("198.51.100.7", "203.0.113.10:80", false)
	if _, err := c.Explain(t.Context(), &q); err == nil || err.Error() != g.Err.Error() {
		t.Errorf("got %v, want %v", err, g.Err)
	}
}
