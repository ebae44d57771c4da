package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
)

// column returns the first fields of the lines of a table, without its head.
func column(out string, n int) (cells []string) {
	for i, line := range strings.Split(strings.TrimSpace(out), "\n") {
		if fields := strings.Fields(line); i > 0 && len(fields) > n {
			cells = append(cells, fields[n])
		}
	}
	return cells
}

// TestNames: arguments select Services by name, with and without namespace and port, and backends
// by address, too. One that selects nothing fails, and the nearest is named.
func TestNames(t *testing.T) {
	socket := daemon(t, statustest.New())
	for _, c := range []struct {
		args, names, says string
		code              int
	}{
		{"services web", "web", "", exitOK},
		{"services web:http kube-system/dns", "dns web", "", exitOK},
		{"services default/web --service kube-system/dns", "dns web", "", exitOK},
		{"services wbe", "", "no Service wbe, see `sluice services`; did you mean web?", exitFailure},
		{"services web default/wbe", "", "no Service default/wbe, see `sluice services`; did you mean default/web?",
			exitFailure},
		{"services default/web:https", "", "no Service default/web:https", exitFailure},
		{"backends web", "web web web", "", exitOK},
		{"backends 10.1.0.11", "web", "", exitOK},
		{"backends 10.1.0.0/24 web", "web web web", "", exitOK},
		{"backends dns", "", "Service dns has no endpoints.", exitOK},
		{"backends 10.1.0.13", "", "no backend 10.1.0.13", exitFailure},
		{"backends wbe", "", "did you mean web?", exitFailure},
		{"flows default/web", "established fin_wait established", "", exitOK},
		{"flows default/web:http --state established", "established established", "", exitOK},
		{"flows default/wbe", "", "did you mean default/web?", exitFailure},
		{"flows default/web kube-system/dns", "", "one Service, not 2", exitUsage},
		{"flows default/web --service kube-system/dns", "", "not both", exitUsage},
		{"flows web", "", `unknown command "web" for "sluice flows"`, exitUsage},
		{"deny list 203.0.113.9", "-", "", exitOK},
		{"deny list 192.0.2.1", "", "192.0.2.1 is not denied.", exitOK},
		{"deny list web", "", "neither an address nor a CIDR", exitUsage},
	} {
		code, out, errs := sluice(t, append(strings.Fields(c.args), "--socket", socket)...)
		got := strings.Join(column(out, 1), " ")
		if code != c.code || got != c.names || !strings.Contains(errs, c.says) {
			t.Errorf("%s: exit %d, %q\n%s%s\nwant %d, %q and %q", c.args, code, got, out, errs, c.code, c.names, c.says)
		}
	}
}

// TestSortOfLists: by numbers and by texts, in tables and JSON. What needs attention is first in a
// table without --sort, and JSON has the daemon's order.
func TestSortOfLists(t *testing.T) {
	socket := daemon(t, statustest.New())
	for args, want := range map[string]string{
		"services":                  "dns web",
		"services --sort name":      "dns web",
		"services --sort created":   "web dns",
		"services --sort frontends": "web dns",
	} {
		_, out, errs := sluice(t, append(strings.Fields(args), "--socket", socket)...)
		if got := strings.Join(column(out, 1), " "); got != want {
			t.Errorf("%s: %s, want %s: %s", args, got, want, errs)
		}
	}
	for args, want := range map[string]string{
		"services -o json": "web dns", "services -o json --sort namespace": "web dns",
		"services -o json --sort name": "dns web",
	} {
		_, out, _ := sluice(t, append(strings.Fields(args), "--socket", socket)...)
		var list []status.ServiceView
		if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 2 ||
			list[0].Name+" "+list[1].Name != want {
			t.Errorf("%s: %v, %v, want %s", args, list, err, want)
		}
	}
	_, out, _ := sluice(t, "backends", "--socket", socket)
	if got := strings.Join(column(out, 2), " "); got != "10.1.0.12:8080 [2001:db8:1::11]:8080 10.1.0.11:8080" {
		t.Errorf("backends without new flows, or down, first: %s", got)
	}
	if code, _, errs := sluice(t, "services", "--sort", "nme", "--socket", socket); code != exitUsage ||
		!strings.Contains(errs, "must be one of namespace, name, ") {
		t.Errorf("exit %d, %s", code, errs)
	}
}

// TestFlowsSummary: without a filter flows are counted by Service and state, and the way to the
// list is on standard error; JSON is the list.
func TestFlowsSummary(t *testing.T) {
	socket := daemon(t, statustest.New())
	code, out, errs := sluice(t, "flows", "--socket", socket)
	golden(t, "flows-summary.table", out)
	if code != exitOK || !strings.HasPrefix(errs, "4 flows. To list them, give a Service or a filter") {
		t.Errorf("exit %d, %s", code, errs)
	}
	_, asList, _ := sluice(t, "flows", "--limit", "0", "-o", "json", "--socket", socket)
	_, out, _ = sluice(t, "flows", "-o", "json", "--socket", socket)
	if out != asList || !strings.Contains(out, "snat") {
		t.Errorf("-o json is not the list: %s", out)
	}
}

// moving has counters that increase by each answer.
type moving struct {
	*statustest.Gateway
	answers uint64
}

func (g *moving) Services() []status.ServiceView {
	g.answers++
	list := slices.Clone(g.ServiceList)
	list[0].Traffic.ToClientBytes += g.answers << 20
	return list
}

// TestRate: counters are per second, of two answers; JSON has none.
func TestRate(t *testing.T) {
	socket := daemon(t, &moving{Gateway: statustest.New()})
	code, out, errs := sluice(t, "services", "--rate", "web", "--socket", socket)
	head, _, _ := strings.Cut(out, "\n")
	// A second and what the two requests took.
	if code != exitOK || !strings.Contains(head, "BYTES-OUT/s") || strings.Contains(head, "FRONTENDS") ||
		!slices.ContainsFunc([]string{"1.0MiB", "KiB"}, func(s string) bool {
			cells := column(out, 6)
			return len(cells) == 1 && strings.Contains(cells[0], s)
		}) {
		t.Errorf("exit %d: %s\n%s", code, errs, out)
	}
	if code, _, errs := sluice(t, "services", "--rate", "-o", "json", "--socket", socket); code != exitUsage ||
		!strings.Contains(errs, "-o json and -o yaml have the counters") {
		t.Errorf("exit %d: %s", code, errs)
	}
}

// cancelling ends a context after some writes.
type cancelling struct {
	bytes.Buffer
	writes int
	cancel context.CancelFunc
}

func (c *cancelling) Write(b []byte) (int, error) {
	if c.writes--; c.writes == 0 {
		c.cancel()
	}
	return c.Buffer.Write(b)
}

// watch runs a command with --watch until it has printed two pages.
func watch(t *testing.T, terminal func() (int, int), args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out := &cancelling{writes: 2, cancel: cancel}
	var errs bytes.Buffer
	app := App{Out: out, Err: &errs, terminal: terminal}
	if code := app.Main(ctx, append(args, "--watch=100ms")); code != exitOK || errs.Len() > 0 {
		t.Errorf("%v: exit %d, %s", args, code, errs.String())
	}
	return out.String()
}

// TestWatch: each page has the whole output, with its notes. On a terminal it replaces the page
// before, and has at most the terminal's lines and columns.
func TestWatch(t *testing.T) {
	socket := daemon(t, statustest.New())
	for _, args := range []string{"services", "backends web", "flows default/web", "flows", "deny list", "stats",
		"status", "services -o json", "services -o yaml"} {
		list := append(strings.Fields(args), "--socket", socket)
		_, once, notes := sluice(t, list...)
		want := once + notes + "\n" + once + notes
		switch {
		case strings.Contains(args, "json"):
			want = once + once
		case strings.Contains(args, "yaml"):
			want = "---\n" + once + "---\n" + once
		}
		if got := watch(t, nil, list...); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", args, got, want)
		}
		if strings.Contains(args, "-o") {
			continue
		}
		t.Setenv("TERM", "xterm")
		pages := strings.Split(watch(t, func() (int, int) { return 50, 8 }, list...), clearScreen)
		if len(pages) != 3 || pages[0] != "" {
			t.Fatalf("%s: %q", args, pages)
		}
		for _, page := range pages[1:] {
			lines := strings.Split(strings.TrimSuffix(page, "\n"), "\n")
			if len(lines) > 7 || !strings.HasPrefix(lines[0], "sluice "+strings.Fields(args)[0]) {
				t.Errorf("%s: %q", args, page)
			}
			for _, line := range lines {
				if utf8.RuneCountInString(line) > 50 {
					t.Errorf("%s: wider than the terminal: %q", args, line)
				}
			}
		}
		t.Setenv("TERM", "dumb")
		if got := watch(t, func() (int, int) { return 0, 8 }, list...); got != want {
			t.Errorf("%s on a dumb terminal:\n%q", args, got)
		}
	}
	for args, says := range map[string]string{
		"services --watch 5s":          "the interval belongs to the flag: --watch=5s",
		"services --watch=5":           "write an interval such as --watch=5s",
		"services --watch=1ms":         "of at least 100ms",
		"status --watch --wait --sock": "unknown flag",
	} {
		if code, _, errs := sluice(t, append(strings.Fields(args), "--socket", socket)...); code != exitUsage ||
			!strings.Contains(errs, says) {
			t.Errorf("%s: exit %d, %s", args, code, errs)
		}
	}
	if code, _, errs := sluice(t, "services", "--watch", "wbe", "--socket", socket); code != exitFailure ||
		!strings.Contains(errs, "did you mean web?") {
		t.Errorf("an error of the first page: exit %d, %s", code, errs)
	}
}

// TestTerminalWidth: on a terminal cells are cut to its width, and -o wide cuts none.
func TestTerminalWidth(t *testing.T) {
	socket := daemon(t, statustest.New())
	for _, width := range []int{60, 80, 200} {
		for _, args := range []string{"services", "backends", "flows --limit 0", "flows --sort expires", "stats"} {
			for _, wide := range []bool{false, true} {
				var out, errs bytes.Buffer
				app := App{Out: &out, Err: &errs, terminal: func() (int, int) { return width, 24 }}
				list := append(strings.Fields(args), "--socket", socket)
				if wide {
					list = append(list, "-o", "wide")
				}
				if code := app.Main(t.Context(), list); code != exitOK {
					t.Errorf("%s: exit %d, %s", args, code, errs.String())
				}
				for _, line := range strings.Split(out.String(), "\n") {
					if utf8.RuneCountInString(line) > width && !wide {
						t.Errorf("%s at %d columns: %s", args, width, line)
					}
				}
				if wide && strings.Contains(out.String(), "…") {
					t.Errorf("%s -o wide is cut:\n%s", args, out.String())
				}
			}
		}
	}
}

// TestCompletion: the shell completes names of Services, addresses of backends and frontends,
// denied clients, and columns, as the daemon has them.
func TestCompletion(t *testing.T) {
	socket := daemon(t, statustest.New())
	const services = "default/web\t2 of 3 backends\nkube-system/dns\t0 of 0 backends\n"
	const backends = "10.1.0.11:8080\tdefault/web\n10.1.0.12:8080\tdefault/web\n"
	for args, want := range map[string]string{
		"services ":               services,
		"services default/web ":   "kube-system/dns\t",
		"services --service ":     services,
		"services --sort ":        "namespace\nname\n",
		"services -o ":            "table\nwide\njson\nyaml\n",
		"backends ":               services + backends,
		"flows ":                  "delete\tDelete the flows that match the filters\n" + services,
		"flows --vip ":            "192.0.2.10:80\tdefault/web\n[2001:db8::10]:80\tdefault/web\n192.0.2.53:53\t",
		"flows delete --backend ": backends,
		"capture --service ":      services,
		"drain ":                  backends,
		"drain 10.1.0.11:8080 ":   ":4",
		"deny list ":              "198.51.100.7\n203.0.113.0/24\n",
		"deny remove ":            "198.51.100.7\n2001:db8:66::/48\n",
	} {
		list := append([]string{"__complete", "--socket", socket}, strings.Split(args, " ")...)
		if _, out, _ := sluice(t, list...); !strings.HasPrefix(out, want) {
			t.Errorf("%q: got %q, want %q", args, out, want)
		}
	}
}
