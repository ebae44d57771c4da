package connections

import (
	"bytes"
	"strings"
	"testing"

	"sluice.dev/sluice/bench/stateful"
)

// TestRefuses: what cannot be measured is refused before anything is built.
func TestRefuses(t *testing.T) {
	for message, change := range map[string]func(*Config){
		`system "ipvs" is not one of`: func(c *Config) { c.Systems = []string{"ipvs"} },
		"name systems and rates":      func(c *Config) { c.Rates = nil },
		"50001 connections a second":  func(c *Config) { c.Rates = []int{maxRate + 1} },
		"0 Services":                  func(c *Config) { c.Services = 0 },
		"one measurement of 100 ms":   func(c *Config) { c.Length = 0 },
	} {
		c := Defaults()
		change(&c)
		if err := c.check(); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("the error is %v, want %q", err, message)
		}
	}
}

// TestVIPs: Services have addresses of their own, also beyond 256.
func TestVIPs(t *testing.T) {
	p, err := profile()
	if err != nil {
		t.Fatal(err)
	}
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

// TestTable: a line for each system has the medians of its own figures.
func TestTable(t *testing.T) {
	var rows []*row
	for i, system := range []string{sluice, direct} {
		r := &row{system: system, rate: 1000}
		for n := range 3 {
			result := &stateful.Result{Seconds: 2}
			result.Client = stateful.NewStats(&stateful.Profile{Templates: make([]stateful.Template, 1)})
			result.Client.Templates[0].Completed = uint64(2000 + n)
			result.Client.Templates[0].Failed[stateful.Refused] = uint64(i)
			for us := range int64(100) {
				_ = result.Client.Connect[0].RecordValue(int64(10*i+n) + us)
				_ = result.Client.Whole[0].RecordValue(500)
			}
			r.add(result)
		}
		rows = append(rows, r)
	}
	c := Defaults()
	points := rows[1].points(&c)
	for i, want := range map[int]float64{0: 1000.5, 1: 1, 3: 60, 4: 109, 9: 500} {
		if got := points[i].Median(); got != want || len(points[i].Samples) != 3 {
			t.Errorf("%s is %v, want %v", points[i].Metric, points[i].Samples, want)
		}
	}
	var b bytes.Buffer
	if err := print(&b, rows); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 4 || !strings.Contains(lines[3], direct) || !strings.Contains(lines[3], "60, 109") {
		t.Errorf("the table is\n%s", b.String())
	}
	if !strings.Contains(lines[2], sluice) || !strings.Contains(lines[2], "50, 99") {
		t.Errorf("the table is\n%s", b.String())
	}
}
