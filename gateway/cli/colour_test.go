package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/gateway/doctor"
	"sluice.dev/sluice/gateway/nodetunnel"
	"sluice.dev/sluice/internal/usage"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
	"sluice.dev/sluice/test/bed/pty"
)

// troubled is a gateway with something of each colour.
func troubled() *statustest.Gateway {
	g := statustest.New()
	g.StatusView.Conditions = []status.ConditionView{
		{Name: "steering", Level: "ok", Detail: "as it should be"},
		{Name: "memory", Level: "warn", Detail: "little is left"},
		{Name: "journal", Level: "fail", Detail: "cannot be written"},
	}
	g.StatusView.Problems = []status.ProblemView{
		{Source: "api", Object: "Service a/b", Field: "spec", Message: "is refused"},
		{Source: "api", Object: "Service c/d", Field: "spec", Message: "is odd", Warning: true, Serving: true},
	}
	g.EventList = append(g.EventList, status.EventView{Time: statustest.Start().Add(time.Hour), Level: "ERROR",
		Message: "out of order"})
	later := statustest.Start().AddDate(100, 0, 0) // later than any --since
	g.DropsView.Drops = []status.DropView{
		{Reason: "no_endpoints", Service: "a/b:http", Packets: 7, Last: later},
		{Reason: "limit_source_rate", Packets: 2, Last: later}, {Reason: "no_flow", Packets: 1, Last: later},
	}
	return g
}

func findings(context.Context, *nodetunnel.Config) []doctor.Finding {
	return []doctor.Finding{
		{Level: doctor.OK, Check: "kernel", Found: "new enough"},
		{Level: doctor.Warn, Check: "offloads", Subject: "eth0", Found: "gro is on", Do: "turn it off"},
		{Level: doctor.Fail, Check: "driver", Subject: "eth1", Found: "one\ntwo", Do: "choose another"},
	}
}

// printed returns the output of a command on a file that read reads to its end.
func printed(t *testing.T, out *os.File, read io.Reader, args ...string) string {
	t.Helper()
	text := make(chan string, 1)
	go func() {
		b, err := io.ReadAll(read)
		if err != nil && !errors.Is(err, syscall.EIO) { // of a terminal without a program
			t.Error(err)
		}
		text <- string(b)
	}()
	app := App{Out: out, Err: io.Discard, Node: NodeCommands{Check: findings}}
	app.Main(t.Context(), args)
	if err := out.Close(); err != nil {
		t.Error(err)
	}
	return strings.ReplaceAll(<-text, "\r\n", "\n")
}

var sgr = regexp.MustCompile("\x1b\\[[0-9;]*m")

// TestColours: a terminal shows problems red and warnings yellow. Everywhere else, with NO_COLOR
// and on a dumb terminal every byte is as in a pipe.
func TestColours(t *testing.T) {
	for _, c := range []struct {
		args        []string
		red, yellow []string // starts of lines
	}{
		{[]string{"status"}, []string{"api         Service a/b", "journal"},
			[]string{"api         Service c/d", "memory"}},
		{[]string{"events"}, []string{"2026-03-01T09:00:00.000Z  ERROR"}, []string{"2026-03-01T08:01:00.000Z  WARN"}},
		{[]string{"drops"}, []string{"no_endpoints"}, []string{"limit_source_rate"}},
		{[]string{"node", "check", "--vni", "7"},
			[]string{"fail   driver    eth1     one", "                          two"}, []string{"warn   offloads"}},
	} {
		t.Run(c.args[0], func(t *testing.T) {
			args := append(c.args, "--socket", daemon(t, troubled()))
			var plain bytes.Buffer
			app := App{Out: &plain, Err: io.Discard, Node: NodeCommands{Check: findings}}
			app.Main(t.Context(), args)
			onTerminal := func(term, noColor string) string {
				t.Setenv("TERM", term)
				t.Setenv("NO_COLOR", noColor)
				master, slave := pty.Open(t, 0, 0)
				return printed(t, slave, master, args...)
			}
			got := onTerminal("xterm", "")
			for rendition, starts := range map[string][]string{"\x1b[31m": c.red, "\x1b[33m": c.yellow} {
				for _, start := range starts {
					if !strings.Contains("\n"+got, "\n"+rendition+start) {
						t.Errorf("no line starts with %q in:\n%q", rendition+start, got)
					}
				}
			}
			if sgr.ReplaceAllString(got, "") != plain.String() {
				t.Errorf("without colours it is\n%q\nnot\n%q", sgr.ReplaceAllString(got, ""), plain.String())
			}
			for _, line := range strings.Split(got, "\n") {
				if n := strings.Count(line, "\x1b"); n != 0 && (n != 2 || !strings.HasSuffix(line, usage.PaintEnd)) {
					t.Errorf("a colour goes beyond its line: %q", line)
				}
			}
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			for name, got := range map[string]string{"NO_COLOR": onTerminal("xterm", "1"),
				"TERM=dumb": onTerminal("dumb", ""), "a pipe": printed(t, w, r, args...)} {
				if got != plain.String() {
					t.Errorf("%s: %q, want %q", name, got, plain.String())
				}
			}
		})
	}
}

func TestCutPainted(t *testing.T) {
	for line, want := range map[string]string{
		"metrics": "met…", red.paint("metrics"): red.paint("met…"), red.paint("met"): red.paint("met"), "": "",
	} {
		if got := cutPainted(line, 4); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}
