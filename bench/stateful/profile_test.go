package stateful

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func load(t *testing.T, name string) *Profile {
	t.Helper()
	p, err := Named(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestProfiles: the committed profiles can be read, and have the names of their files.
func TestProfiles(t *testing.T) {
	files, err := filepath.Glob("../profiles/*.yaml")
	if err != nil || len(files) != 6 {
		t.Fatalf("%d profiles, %v", len(files), err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".yaml")
		if p := load(t, name); p.Name != name || !p.VIP.IsValid() {
			t.Errorf("%s: name %q, VIP %v", f, p.Name, p.VIP)
		}
	}
}

// TestVIPs: Services have addresses of their own, also beyond 256.
func TestVIPs(t *testing.T) {
	p := load(t, "answers")
	seen := map[string]bool{}
	for i := range 20_000 {
		a := vip(p, i)
		if seen[a.String()] || p.Servers.Prefix().Contains(a) || p.Clients.Prefix().Contains(a) {
			t.Fatalf("Service %d has the address %s, which is another's", i, a)
		}
		seen[a.String()] = true
	}
	if vip(p, 0) != p.VIP {
		t.Errorf("the first Service has %s, and clients connect to %s", vip(p, 0), p.VIP)
	}
}

func TestNoSuchProfile(t *testing.T) {
	if _, err := Named("hhtp"); err == nil || !strings.Contains(err.Error(), "answers, dns, http, mix") {
		t.Error(err)
	}
}

// TestMix: the templates of mix equal the other profiles' except for the share.
func TestMix(t *testing.T) {
	var want []Template
	for _, name := range []string{"http", "dns", "streams", "quic"} {
		want = append(want, load(t, name).Templates...)
	}
	got := load(t, "mix").Templates
	if !slices.EqualFunc(got, want, func(a, b Template) bool {
		return a.Name == b.Name && a.Protocol == b.Protocol && a.Port == b.Port && a.Timeout == b.Timeout &&
			a.Retries == b.Retries &&
			a.Close == b.Close && slices.EqualFunc(a.Steps, b.Steps, func(x, y Step) bool {
			return x.From == y.From && x.Size == y.Size && x.Count == y.Count && x.After == y.After &&
				string(x.Bytes) == string(y.Bytes)
		})
	}) {
		t.Error("mix has other templates than http, dns, streams and quic have; copy them")
	}
}

const whole = `name: x
duration: 1s
connectionsPerSecond: 10
concurrency: 10
clients: {addresses: 10.0.0.1-10.0.0.2, ports: 1000-2000}
servers: {addresses: 10.0.1.1}
templates:
- name: a
  protocol: tcp
  port: 80
  share: 1
  steps:
  - {from: client, size: 10}
  - {from: server, size: 100}
`

// TestYAMLErrors: an error names the file, the line or the template, and a remedy.
func TestYAMLErrors(t *testing.T) {
	if _, err := Parse("p.yaml", []byte(whole)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, old, new, want string }{
		{"unknown field", "duration: 1s", "durration: 1s", "line 2: field durration not found"},
		{"unknown field of a step", "size: 10}", "size: 10, pause: 1s}", "line 13: field pause not found"},
		{"twice", "duration: 1s", "duration: 1s\nduration: 2s", `line 3: mapping key "duration" already defined`},
		{"not a number", "concurrency: 10", "concurrency: many", "line 4: cannot unmarshal !!str `many` into int"},
		{"not a time", "duration: 1s", "duration: 1", "line 2: cannot unmarshal !!int `1` into time.Duration"},
		{"no side", "from: client", "from: clients", `"clients" is no side: client and server are possible`},
		{"no protocol", "protocol: tcp", "protocol: sctp", `"sctp" is no protocol: tcp and udp are possible`},
		{"no ports", ", ports: 1000-2000", "", "clients have no ports: add ports: FIRST-LAST"},
		{"families", "10.0.1.1", "fd00::1", "clients, servers and vip must be of one address family"},
		{"few tuples", "concurrency: 10", "concurrency: 5000", "fewer than concurrency 5000"},
		{"no tag", "size: 100}", "size: 10}",
			"template a: step 2: 10 bytes: a server's message begins with a tag of 16"},
		{"server first", "from: client", "from: server", "the first step is the server's"},
		{"two ways", "size: 10}", "size: 10, text: hello}",
			"entry 1 of steps: a step needs from: client or server, and one of size, text and hex"},
		{"hex", "size: 10}", "hex: 1}", "hex: encoding/hex: odd length hex string: write two digits"},
		{"count over TCP", "size: 10}", "size: 10, count: 2}", "over TCP a step is one message"},
		{"repeat", "- {from: client, size: 10}", "- repeat: 100000\n    steps:\n    - {from: client, size: 10}",
			"template a: entry 1 of steps: 100000 times 1 steps"},
		{"no list", "templates:\n", "templates: {}\nx:\n", "line 7: cannot unmarshal !!map into []"},
		{"port", "port: 80", "port: 65536", "line 10: cannot unmarshal !!int `65536` into uint16"},
		{"syntax", "name: x", "name: [x", "line 1"},
		{"rate", "connectionsPerSecond: 10", "connectionsPerSecond: -1", "connectionsPerSecond -1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := strings.Replace(whole, tc.old, tc.new, 1)
			if text == whole {
				t.Fatal("the case changes nothing")
			}
			_, err := Parse("p.yaml", []byte(text))
			if err == nil || !strings.HasPrefix(err.Error(), "p.yaml: ") || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("said\n%v\nwant\n%s", err, tc.want)
			}
		})
	}
}

func TestRepetition(t *testing.T) {
	p := load(t, "streams")
	if n := len(p.Templates[0].Steps); n != 41 {
		t.Errorf("feed has %d steps written out, want 1 + 20 * 2", n)
	}
	if p.Templates[0].Steps[39].After != 500*time.Millisecond {
		t.Error("the last chunk has no think")
	}
}

func TestShares(t *testing.T) {
	p := load(t, "mix")
	counts := make([]int, len(p.Templates))
	for _, k := range turns(p) {
		counts[k]++
	}
	sum := 0.0
	for i := range p.Templates {
		sum += p.Templates[i].Share
	}
	for i, n := range counts {
		if want := p.Templates[i].Share / sum * turnsLength; math.Abs(float64(n)-want) > 1 {
			t.Errorf("%s: %d of %d turns, want %.0f", p.Templates[i].Name, n, turnsLength, want)
		}
	}
}

func TestRamp(t *testing.T) {
	s := starter{cps: 100, ramp: []RampStep{{time.Second, 50}, {3 * time.Second, 10}}}
	for _, tc := range []struct {
		at   time.Duration
		want float64
	}{{0, 0}, {500 * time.Millisecond, 25}, {time.Second, 50}, {2 * time.Second, 30}, {3 * time.Second, 100},
		{time.Hour, 100}} {
		if got := s.rate(tc.at); math.Abs(got-tc.want) > 0.01 {
			t.Errorf("rate at %s is %g, want %g", tc.at, got, tc.want)
		}
	}
}

func TestPool(t *testing.T) {
	p, err := ParsePool("10.81.0.250-10.81.1.5", "1-65535")
	if err != nil || p.Len() != 12 || p.At(6).String() != "10.81.1.0" || p.Prefix().String() != "10.81.0.0/23" {
		t.Errorf("%v: %d addresses, seventh %v, prefix %v, %v", p, p.Len(), p.At(6), p.Prefix(), err)
	}
	q := p.To6()
	if q.Len() != 12 || q.At(6).String() != "fd51:1ce::a51:100" || q.Prefix().String() != "fd51:1ce::a51:0/119" {
		t.Errorf("%v: %d addresses, seventh %v, prefix %v", q, q.Len(), q.At(6), q.Prefix())
	}
	for _, bad := range [][2]string{
		{"", ""}, {"10.0.0.2-10.0.0.1", ""}, {"10.0.0.1-fd00::1", ""}, {"10.0.0.0-10.9.0.0", ""}, {"10.0.0.1", "0-5"},
		{"10.0.0.1", "7-5"},
	} {
		if _, err := ParsePool(bad[0], bad[1]); err == nil {
			t.Errorf("%q is taken for a pool", bad)
		}
	}
}
