package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
	"sluice.dev/sluice/test/bed/pagetest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// daemon serves a sample gateway on a socket and returns the socket.
func daemon(t *testing.T, g status.Gateway) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := status.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	s := status.NewServer(g, slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := errors.Join(s.Shutdown(ctx), <-done); err != nil {
			t.Error(err)
		}
	})
	return path
}

func noDaemon(context.Context, string, bool) error { return errors.New("no daemon in this test") }

func sluice(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	return sluiceWith(t, explainOffline, args...)
}

func sluiceWith(t *testing.T, explain ExplainOffline, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	app := App{Out: &o, Err: &e, Explain: explain, StartError: func(*config.Configuration) error { return nil },
		Run: noDaemon}
	code = app.Main(t.Context(), args)
	return code, o.String(), e.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s, -want +got (go test -update rewrites it):\n%s", name, diff)
	}
}

// outputNotes are the notes of TestOutputs on standard error.
var outputNotes = map[string]string{
	"flows-none": "No flow matches: protocol icmp.\n",
	"drops": "Estimates for the last 1m0s; `sluice stats` counts exactly since the start.\n" +
		"The kernel program has dropped packets since it was loaded, of which there are no samples: " +
		"denied_dropped=12346. `sluice deny list` counts those of denied clients.\n",
}

// TestDropsOfAService: the notes on a Service without drops are about no other packets.
func TestDropsOfAService(t *testing.T) {
	const want = "No packet of kube-system/dns was dropped in the last 1m0s.\n"
	code, _, errs := sluice(t, "drops", "kube-system/dns", "--socket", daemon(t, statustest.New()))
	if code != exitOK || errs != want {
		t.Errorf("exit %d, %s", code, errs)
	}
}

// TestOutputs holds what every asking command prints, in all three formats; JSON
// and YAML must say the same.
func TestOutputs(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		list bool // it fits 80 columns
	}{
		{"services", []string{"services"}, true},
		{"backends", []string{"backends"}, true},
		{"services-time", []string{"services", "--time"}, true},
		{"backends-time", []string{"backends", "--time"}, true},
		{"flows", []string{"flows", "--limit", "0"}, false},
		{"flows-filtered", []string{"flows", "--vip", "192.0.2.10:80", "--state", "established"}, true},
		{"flows-none", []string{"flows", "--protocol", "icmp"}, true},
		{"flows-delete", []string{"flows", "delete", "--backend", "10.1.0.11"}, false},
		{"explain", []string{"explain", "--from", "198.51.100.7", "--to", "192.0.2.10:80"}, false},
		{"drain", []string{"drain", "10.1.0.11:8080"}, false},
		{"undrain", []string{"undrain", "10.1.0.11:8080"}, false},
		{"deny", []string{"deny", "192.0.2.0/24", "--for", "90m"}, false},
		{"deny-list", []string{"deny", "list"}, true},
		{"events", []string{"events", "--since", "2026-03-01T08:00:30Z"}, false},
		{"deny-remove", []string{"deny", "remove", "198.51.100.7"}, false},
		{"drops", []string{"drops"}, true},
		{"stats", []string{"stats"}, true},
		{"stats-verbose", []string{"stats", "--verbose"}, true},
		{"status", []string{"status"}, false},
		{"status-verbose", []string{"status", "-v"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			printed := map[string]string{}
			for _, format := range []string{"table", "wide", "json", "yaml"} {
				socket := daemon(t, statustest.New())
				code, out, errs := sluice(t, append(c.args, "-o", format, "--socket", socket)...)
				note := ""
				if outputFormat(format).text() {
					note = outputNotes[c.name]
				}
				if code != exitOK || errs != note {
					t.Fatalf("%s: exit %d, %s", format, code, errs)
				}
				printed[format] = out
				name := c.name
				if !outputFormat(format).text() { // which has everything
					name = strings.TrimSuffix(name, "-verbose")
				}
				if format != "wide" || out != printed["table"] {
					golden(t, name+"."+format, out)
				}
				for _, line := range strings.Split(out, "\n") {
					if format == "table" && c.list && utf8.RuneCountInString(line) > 80 {
						t.Errorf("wider than 80 columns: %s", line)
					}
				}
			}
			var fromJSON, fromYAML any
			if err := json.Unmarshal([]byte(printed["json"]), &fromJSON); err != nil {
				t.Errorf("not JSON: %v", err)
			}
			if err := yaml.Unmarshal([]byte(printed["yaml"]), &fromYAML); err != nil {
				t.Errorf("not YAML: %v", err)
			}
			if !reflect.DeepEqual(fromJSON, fromYAML) {
				t.Errorf("JSON says %v\nYAML says %v", fromJSON, fromYAML)
			}
		})
	}
}

// TestWaitInForce: each part of the configuration that is not in force fails `status --wait`, is
// named, and leaves `status` without --wait alone. A refused object of the API fails neither.
func TestWaitInForce(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*status.StatusView)
		want string // "": in force
	}{
		{"all in force", func(*status.StatusView) {}, ""},
		{"configuration refused", func(v *status.StatusView) { v.Config.Error = "line 3: unknown field" },
			"line 3: unknown field"},
		{"restart pending", func(v *status.StatusView) { v.Config.NeedRestart = []string{"tuning.ringSize"} },
			"a restart is needed: tuning.ringSize"},
		{"source fails", func(v *status.StatusView) { v.Sources[0].Error = "permission denied" }, "permission denied"},
		{"source not read", func(v *status.StatusView) { v.Sources[0].Synced = false }, "has not been read yet"},
		{"not applied", func(v *status.StatusView) { v.Applied = false }, "objects that were read are not applied yet"},
		{"denied clients refused by the kernel", func(v *status.StatusView) {
			v.Conditions = append(v.Conditions, status.ConditionView{Name: status.DenyCondition, Level: "fail",
				Detail: "no memory"})
		}, "deny: no memory"},
		{"denied clients", func(v *status.StatusView) {
			v.Conditions = append(v.Conditions, status.ConditionView{Name: status.DenyCondition, Level: "ok"})
		}, ""},
		{"no socket for readers", func(v *status.StatusView) {
			v.Conditions = append(v.Conditions, status.ConditionView{Name: status.ReadersCondition, Level: "warn",
				Detail: "no such group"})
		}, "readers: no such group"},
		{"manifest broken", func(v *status.StatusView) {
			v.Problems = []status.ProblemView{{Source: "/etc/sluice/manifests/a.yaml#1", Message: "no YAML"}}
		}, "/etc/sluice/manifests/a.yaml#1: no YAML"},
		{"last good version of a manifest", func(v *status.StatusView) {
			v.Problems = []status.ProblemView{{Source: "/etc/sluice/manifests/a.yaml", Object: "Service a/b",
				Message: "bad", Serving: true}}
		}, "a.yaml: Service a/b: bad"},
		{"warning", func(v *status.StatusView) {
			v.Problems = []status.ProblemView{{Source: "/etc/sluice/manifests/a.yaml", Message: "odd", Warning: true}}
		}, ""},
		{"object of the API", func(v *status.StatusView) {
			v.Problems = []status.ProblemView{{Source: "kubernetes", Object: "Service a/b", Message: "bad"}}
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := statustest.New()
			g.StatusView.Config.NeedRestart, g.StatusView.Problems = nil, nil
			c.edit(&g.StatusView)
			socket := daemon(t, g)
			code, out, errs := sluice(t, "status", "--wait", "--timeout", "300ms", "--socket", socket)
			if want := map[bool]int{true: exitOK, false: exitFailure}[c.want == ""]; code != want ||
				!strings.Contains(errs, c.want) || !strings.Contains(out, "Config:") {
				t.Errorf("exit %d, want %d and %q\n%s%s", code, want, c.want, errs, out)
			}
			if code, _, errs := sluice(t, "status", "--socket", socket); code != exitOK {
				t.Errorf("without --wait: exit %d, %s", code, errs)
			}
		})
	}
}

// TestFailedCondition: it is seen at once, above the tables, and is not the command's
// failure; that something is not applied is, with --wait.
func TestFailedCondition(t *testing.T) {
	g := statustest.New()
	g.StatusView.Config.NeedRestart, g.StatusView.Problems = nil, nil
	g.StatusView.Conditions = append(g.StatusView.Conditions, status.ConditionView{Name: "mtu", Level: "fail",
		Detail: "interface eth0 has MTU 9000"})
	socket := daemon(t, g)
	for _, args := range [][]string{{"status"}, {"status", "--wait"}} {
		code, out, errs := sluice(t, append(args, "--socket", socket)...)
		head, _, _ := strings.Cut(out, "\n\n")
		if code != exitOK || errs != "" || !strings.Contains(head, "Failed:   mtu: interface eth0 has MTU 9000") ||
			strings.Contains(head, "metrics-listener") {
			t.Errorf("%v: exit %d, %s\n%s", args, code, errs, head)
		}
	}
}

// TestWaitForApplied: what is not applied at the timeout is named, with the status that the help of
// --wait promises.
func TestWaitForApplied(t *testing.T) {
	for _, c := range []struct {
		applied  bool
		notReady []string
		want     string
	}{
		{false, nil, "not in force after 50ms:\n  objects that were read are not applied yet\n"},
		{true, []string{"the interfaces are not open yet"},
			"not in force after 50ms:\n  the interfaces are not open yet\n"},
		{true, nil, "not in force after 50ms:\n" +
			"  the configuration file, or objects that were read, took too long to be applied\n"},
	} {
		g := statustest.New()
		g.StatusView.Config.NeedRestart, g.StatusView.Problems = nil, nil
		g.StatusView.Applied, g.StatusView.NotReady, g.Applied = c.applied, c.notReady, make(chan struct{})
		socket := daemon(t, g)
		code, out, errs := sluice(t, "status", "--wait", "--timeout", "50ms", "--socket", socket)
		if code != exitFailure || !strings.Contains(errs, c.want) || !strings.Contains(out, "Applied:") {
			t.Errorf("exit %d, want %d and %q\n%s%s", code, exitFailure, c.want, errs, out)
		}
		if code, _, errs := sluice(t, "status", "--socket", socket); code != exitOK {
			t.Errorf("without --wait: exit %d, %s", code, errs)
		}
	}
}

// TestManyFlows: a long listing is complete in every format.
func TestManyFlows(t *testing.T) {
	const n = 2500
	g := statustest.New()
	g.Many(n)
	socket := daemon(t, g)
	_, out, _ := sluice(t, "flows", "--limit", "0", "--socket", socket)
	if lines := strings.Count(out, "\n"); lines != n+1 {
		t.Errorf("table has %d lines, want %d", lines, n+1)
	}
	for _, format := range []string{"json", "yaml"} {
		_, out, _ := sluice(t, "flows", "--socket", socket, "-o", format)
		var list []status.FlowView
		if err := yaml.Unmarshal([]byte(out), &list); err != nil || len(list) != n {
			t.Errorf("%s: %d flows, %v", format, len(list), err)
		}
	}
}

// TestSomeFlows: --limit lists so many and reports that there are more, --count lists none.
func TestSomeFlows(t *testing.T) {
	g := statustest.New()
	g.Many(700)
	socket := daemon(t, g)
	for _, c := range []struct {
		args, errs string
		code, rows int
	}{
		{"--limit 600", "more flows than --limit 600", exitOK, 601},
		{"--limit 700", "", exitOK, 701},
		{"--limit 0", "", exitOK, 701},
		{"--limit -1", "--limit is -1", exitUsage, 0},
		{"--count --limit 1", "not both", exitUsage, 0},
		{"--count", "", exitOK, 1},
	} {
		code, out, errs := sluice(t, append([]string{"flows", "--socket", socket}, strings.Fields(c.args)...)...)
		if code != c.code || strings.Count(out, "\n") != c.rows || !strings.Contains(errs, c.errs) ||
			(errs == "") != (c.errs == "") {
			t.Errorf("%s: exit %d, %d rows, %q; want %d, %d, %q", c.args, code, strings.Count(out, "\n"), errs, c.code,
				c.rows, c.errs)
		}
		if c.args == "--count" && out != "700\n" {
			t.Errorf("counted %q", out)
		}
	}
	if _, out, _ := sluice(t, "flows", "--socket", socket, "--limit", "3", "-o", "json"); strings.Count(out,
		`"protocol"`) != 3 || !strings.HasSuffix(out, "]\n") {
		t.Errorf("three flows as JSON: %s", out)
	}
}

// TestTablesAreColumns: every row of a listing has as many columns as its head, so awk works. What
// checks of backends say has spaces, and comes last.
func TestTablesAreColumns(t *testing.T) {
	socket := daemon(t, statustest.New())
	for command, spaced := range map[string]string{
		"services": "", "backends": "eth1 02:00:00:00:00:11|host link", "flows": "",
	} {
		_, out, _ := sluice(t, command, "--socket", socket)
		for _, s := range strings.Split(spaced, "|") {
			if s != "" {
				out = strings.ReplaceAll(out, s, strings.ReplaceAll(s, " ", "_"))
			}
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if before, last, found := strings.Cut(lines[0], "HEALTH"); found {
			if last != "" {
				t.Errorf("%s: %q comes behind what checks say", command, last)
			}
			for i, line := range lines {
				lines[i] = line[:len(before)]
			}
		}
		for _, line := range lines[1:] {
			if got, want := len(strings.Fields(line)), len(strings.Fields(lines[0])); got != want {
				t.Errorf("%s: %d columns under %d heads: %s", command, got, want, line)
			}
		}
	}
}

func TestExitCodes(t *testing.T) {
	g := statustest.New()
	g.Err = errors.New("the table is being rebuilt")
	refusing := daemon(t, g)
	absent := filepath.Join(t.TempDir(), "none")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, exitOK, ""},
		{[]string{"help"}, exitOK, ""},
		{[]string{"version"}, exitOK, ""},
		{[]string{"completion", "bash"}, exitOK, ""},
		{[]string{"servces"}, exitUsage, `sluice: unknown command "servces" for "sluice"`},
		{[]string{"stats", "extra"}, exitUsage, `sluice: unknown command "extra" for "sluice stats"`},
		{[]string{"services", "--colour"}, exitUsage, "sluice: unknown flag: --colour\n"},
		{[]string{"servces"}, exitUsage, `sluice: unknown command "servces" for "sluice"; did you mean services?`},
		{[]string{"flow", "delte"}, exitUsage,
			`sluice: unknown command "delte" for "sluice flows"; did you mean delete?`},
		{[]string{"config", "chekc"}, exitUsage,
			`sluice: unknown command "chekc" for "sluice config"; did you mean check?`},
		{[]string{"probe", "liev"}, exitUsage,
			`sluice: invalid argument "liev" for "sluice probe"; did you mean live?`},
		{[]string{"flows", "--vpi", "192.0.2.10"}, exitUsage, "sluice: unknown flag: --vpi; did you mean --vip?"},
		{[]string{"flows", "delete", "--bakend", "192.0.2.10"}, exitUsage,
			"sluice: unknown flag: --bakend; did you mean --backend?"},
		{[]string{"flows", "--servce", "x"}, exitUsage, "sluice: unknown flag: --servce; did you mean --service?"},
		{[]string{"services", "-o", "jsn"}, exitUsage, `sluice: invalid argument "jsn" for "-o, --output" flag: ` +
			"must be table, wide, json or yaml; did you mean json?"},
		{[]string{"flows", "--protocol", "tpc"}, exitUsage, `sluice: invalid argument "tpc" for "--protocol" flag: ` +
			"must be one of tcp, udp, sctp, icmp, icmpv6; did you mean tcp?"},
		{[]string{"backends", "--sort", "wieght"}, exitUsage, `sluice: invalid argument "wieght" for "--sort" flag: must`},
		{[]string{"capture", "-w", "-", "--drop", "no_flw"}, exitUsage,
			`sluice: --drop: there is no drop reason "no_flw"; did you mean no_flow?`},
		{[]string{"announce", "--socket", absent}, exitUsage,
			"sluice: --socket is the gateway's socket, and announce asks the announcer: " +
				"give its socket with --announcer\n"},
		{[]string{"cleanup", "--socket", absent}, exitUsage, "sluice: cleanup has no --socket: "},
		{[]string{"run", "--config", "x", "--socket", absent}, exitUsage, "sluice: run has no --socket: "},
		{[]string{"run", "--config", "x", "-o", "json"}, exitUsage, "sluice: run prints no result"},
		{[]string{"status", "--timeout", "1s"}, exitUsage, "sluice: --timeout bounds --wait: also give --wait"},
		{[]string{"services", "-o", "xml"}, exitUsage,
			`sluice: invalid argument "xml" for "-o, --output" flag: must be table, wide, json or yaml`},
		{[]string{"flows", "--client", "me"}, exitUsage,
			`sluice: invalid argument "me" for "--client" flag: "me" is no address, address:port or prefix`},
		{[]string{"flows", "delete"}, exitUsage,
			"sluice: flows delete needs a filter; give --all to delete every flow"},
		{[]string{"flows", "delete", "--all", "--state", "established"}, exitUsage,
			"sluice: flows delete takes a filter or --all, not both"},
		{[]string{"drain"}, exitUsage, "sluice: drain takes one argument, not 0: sluice drain BACKEND"},
		{[]string{"undrain", "10.0.1.12", "10.0.1.13"}, exitUsage,
			"sluice: undrain takes one argument, not 2: sluice undrain BACKEND"},
		{[]string{"probe"}, exitUsage, "sluice: probe takes one argument, not 0: sluice probe live|ready"},
		{[]string{"drain", "web"}, exitUsage, `sluice: "web" is no address`},
		{[]string{"deny"}, exitUsage, "sluice: deny takes one argument, not 0: sluice deny CLIENT"},
		{[]string{"deny", "web"}, exitUsage, `sluice: "web" is neither an address nor a CIDR`},
		{[]string{"deny", "192.0.2.1", "--for", "0s"}, exitUsage, "sluice: --for is 0s: give a time such as 15m"},
		{[]string{"events", "--since", "yesterday"}, exitUsage,
			`sluice: invalid argument "yesterday" for "--since" flag: write a duration such as 15m or 2h, or a time`},
		{[]string{"deny", "remove", "192.0.2.1", "--socket", daemon(t, statustest.New())}, exitFailure,
			"sluice: 192.0.2.1/32: there is no such entry"},
		{[]string{"config"}, exitUsage, "sluice: config needs one of: check FILE, defaults"},
		{[]string{"config", "chekc"}, exitUsage, `sluice: unknown command "chekc" for "sluice config"`},
		{[]string{"config", "check"}, exitUsage, "sluice: check takes one argument, not 0: sluice config check FILE"},
		{[]string{"run"}, exitUsage,
			"sluice: run needs --config FILE; `sluice config defaults` prints a file to start from"},

		{[]string{"run", "--config", "x"}, exitFailure, "sluice: no daemon in this test\n"},
		{[]string{"config", "check", absent}, exitFailure, "sluice: configuration: open " + absent +
			": no such file or directory\n"},
		{[]string{"drain", "10.9.9.9", "--socket", daemon(t, statustest.New())}, exitFailure,
			"sluice: no backend 10.9.9.9, see `sluice backends`\n"},
		{[]string{"flows", "delete", "--all", "--socket", refusing}, exitFailure,
			"sluice: the table is being rebuilt\n"},
		{[]string{"stats", "--socket", absent}, exitFailure,
			"sluice: the sluice daemon is not running: no process answers on " + absent +
				"; start it with `sluice run --config FILE`, or give its socket with --socket\n"},
		{[]string{"announce", "--announcer", absent}, exitFailure, "sluice: no announcer answers on " + absent +
			": is sluice-announcer running? Give its socket with --announcer\n"},
		{[]string{"flows", "--socket", absent}, exitFailure, "sluice: the sluice daemon is not running"},
		{[]string{"flows", "--socket", absent, "-o", "json"}, exitFailure, "sluice: the sluice daemon is not running"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			code, out, errs := sluice(t, c.args...)
			if code != c.code || !strings.HasPrefix(errs, c.want) {
				t.Errorf("exit %d, %q\nwant %d, %q", code, errs, c.code, c.want)
			}
			if help := strings.Contains(errs, "sluice help"); help != (c.code == exitUsage) {
				t.Errorf("exit %d, and points to help: %v", code, help)
			}
			if c.code == exitFailure && strings.Count(errs, "\n") != 1 {
				t.Errorf("not one clear line: %q", errs)
			}
			if c.code == exitFailure && out != "" {
				t.Errorf("beside the error it prints %q", out)
			}
		})
	}
}

func TestConfigCommands(t *testing.T) {
	_, defaults, _ := sluice(t, "config", "defaults")
	if defaults != string(config.DefaultsYAML()) {
		t.Error("config defaults is not the commented file")
	}
	file := filepath.Join(t.TempDir(), "gw.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// What an operator does first: the defaults, with an interface.
	write(strings.Replace(defaults, "interfaces: []", "interfaces: [{name: lo}]", 1))
	if code, out, errs := sluice(t, "config", "check", file); code != exitOK || out != file+": ok\n" {
		t.Errorf("exit %d, %q %q", code, out, errs)
	}
	if code, _, errs := sluice(t, "config", "check", "--host", file); code != exitFailure ||
		!strings.Contains(errs, "manifests.directory: /etc/sluice/manifests is no directory") {
		t.Errorf("--host: exit %d, %q", code, errs)
	}
	// A directory as `mount -t tmpfs` makes it, which `sluice run` refuses.
	shared := t.TempDir()
	if err := os.Chmod(shared, os.ModeSticky|0o777); err != nil {
		t.Fatal(err)
	}
	write(strings.NewReplacer("interfaces: []", "interfaces: [{name: lo}]", "/etc/sluice/manifests", t.TempDir(),
		"stateDir: /run/sluice", "stateDir: "+shared).Replace(defaults))
	if code, out, errs := sluice(t, "config", "check", "--host", file); code != exitFailure || out != "" ||
		!strings.Contains(errs, "stateDir: cannot be used: "+shared+" may be written by users other than its owner "+
			"(mode 1777)") || strings.Count(errs, "\n") != 1 {
		t.Errorf("--host, with a state directory that others may write: exit %d, %q, %q", code, out, errs)
	}
	if _, out, _ := sluice(t, "config", "check", file, "-o", "yaml"); !strings.Contains(out, "name: lo") ||
		!strings.Contains(out, "ringSize: 2048") {
		t.Errorf("-o yaml prints %q", out)
	}
	write(defaults + "\nbach: 3\n")
	code, out, errs := sluice(t, "config", "check", file)
	if code != exitFailure || out != "" || !strings.HasPrefix(errs, "sluice: 2 problems\n"+file+":") ||
		strings.Count(errs, "\n") != 3 {
		t.Errorf("exit %d, %q %q", code, out, errs)
	}
}

// TestRunSignal: the first SIGTERM ends the daemon's context.
func TestRunSignal(t *testing.T) {
	app := App{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}, Run: func(ctx context.Context, file string, _ bool) error {
		if file != "gw.yaml" {
			t.Errorf("run got file %q", file)
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(10 * time.Second):
			return errors.New("SIGTERM did not end the context")
		}
	}}
	if code := app.Main(t.Context(), []string{"run", "--config", "gw.yaml"}); code != exitOK {
		t.Errorf("exit %d: %s", code, app.Err)
	}
}

// TestMessagesStayInTheirCell: what comes from objects neither breaks a table nor
// reaches the terminal as a command.
func TestMessagesStayInTheirCell(t *testing.T) {
	g := statustest.New()
	g.StatusView.Problems[0].Message = "one\ntwo\tthree\x1b[2J"
	_, out, _ := sluice(t, "status", "--socket", daemon(t, g))
	if !strings.Contains(out, "  one; two three [2J\n") {
		t.Errorf("got %q", out)
	}
}

// TestAdvisedCommandsExist: each command line of sluice in a page or a message is one that there
// is.
func TestAdvisedCommandsExist(t *testing.T) {
	pagetest.Commands(t, "../..", func() *cobra.Command {
		return (&session{app: &App{Out: io.Discard, Err: io.Discard}}).root()
	}, 100)
}
