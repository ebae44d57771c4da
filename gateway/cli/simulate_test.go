package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/gateway/simulate"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/serve/status"
)

// simulated is a directory with two directories of manifests, old and new, and a configuration.
const simulated = "../simulate/testdata"

// today writes a capture of 1000 connections, 200 questions, and clients that only the old or only
// the new manifests allow.
func today(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	w := pcapgo.NewWriter(&b)
	if err := w.WriteFileHeader(1<<16, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_790_000_000, 0)
	add := func(list ...*headertest.Packet) {
		for _, p := range list {
			frame := p.Bytes()
			at = at.Add(10 * time.Millisecond)
			ci := gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(frame), Length: len(frame)}
			if err := w.WritePacket(ci, frame); err != nil {
				t.Fatal(err)
			}
		}
	}
	const web, dns, admin = "203.0.113.10:80", "203.0.113.11:53", "203.0.113.12:443"
	connect := func(client, vip string) {
		add(headertest.TCP(client, vip, headertest.SYN), headertest.TCP(vip, client, headertest.SYN|headertest.ACK),
			headertest.TCP(client, vip, headertest.ACK))
	}
	for i := range 1000 {
		client := fmt.Sprintf("198.51.100.%d:%d", 1+i%60, 40000+i)
		connect(client, web)
		if i%5 == 0 {
			add(headertest.UDP(client, dns, "question"), headertest.UDP(dns, client, "answer"))
		}
	}
	connect("198.51.100.200:50000", admin)
	connect("192.0.2.5:50000", admin)
	path := filepath.Join(t.TempDir(), "today.pcap")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// simulation runs a command line in the directory of the test's files.
func simulation(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(simulated)
	defer t.Chdir(here)
	var o, e bytes.Buffer
	app := App{Out: &o, Err: &e, Simulate: simulate.Run, StartError: func(*config.Configuration) error { return nil }}
	code = app.Main(t.Context(), append([]string{"simulate"}, args...))
	return code, o.String(), e.String()
}

// TestSimulate: the result as text and JSON, and the exit code for a pipeline.
func TestSimulate(t *testing.T) {
	capture := today(t)
	for _, c := range []struct {
		name, args string
		code       int
		errs       string
	}{
		{"old", "--manifests old", exitFindings, "sluice: simulation: flows that are dropped: 1\n"},
		{"against", "--manifests new --against old", exitFindings,
			"sluice: simulation: flows that go to another backend: "},
		{"same", "--manifests old --against old", exitOK, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append(strings.Fields(c.args), "--capture", capture, "--config", "gateway.yaml")
			code, out, errs := simulation(t, args...)
			if code != c.code || !strings.HasPrefix(errs, c.errs) || (c.errs == "") != (errs == "") {
				t.Errorf("exit %d, want %d: %s", code, c.code, errs)
			}
			golden(t, "simulate/"+c.name+".table", out)
			code, out, _ = simulation(t, append(args, "-o", "json")...)
			var v status.SimulateView
			if err := json.Unmarshal([]byte(out), &v); err != nil || code != c.code {
				t.Errorf("exit %d with -o json: %v", code, err)
			}
			golden(t, "simulate/"+c.name+".json", strings.ReplaceAll(out, capture, "today.pcap"))
		})
	}
}

// TestSimulateErrors: wrong use and wrong files.
func TestSimulateErrors(t *testing.T) {
	capture := today(t)
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"", exitUsage, "simulate needs --capture and --manifests"},
		{"--capture x", exitUsage, "simulate needs --capture and --manifests"},
		{"--manifests old", exitUsage, "simulate needs --capture and --manifests"},
		{"--manifests old --capture none", exitFailure, "capture: open none: no such file or directory"},
		{"--manifests old --capture gateway.yaml", exitFailure, "is neither pcap nor pcapng"},
		{"--manifests none --capture " + capture, exitFailure, "none"},
		{"--manifests old --mtu 9 --capture " + capture, exitFailure, "the MTU is 9"},
	} {
		code, out, errs := simulation(t, strings.Fields(c.args)...)
		if code != c.code || out != "" || !strings.Contains(errs, c.want) {
			t.Errorf("%s: exit %d, want %d and %q: %s%s", c.args, code, c.code, c.want, errs, out)
		}
	}
}

// TestSimulatePage: the page has lines that the command prints, in their order.
func TestSimulatePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.ReadFile("testdata/simulate/against.table")
	if err != nil {
		t.Fatal(err)
	}
	const command = "$ sluice simulate --capture today.pcap --config gateway.yaml --manifests new --against old\n"
	_, rest, found := strings.Cut(string(page), command)
	block, _, ended := strings.Cut(rest, "```")
	if !found || !ended || strings.Count(block, "\n") < 8 {
		t.Fatalf("docs/operations.md has no output of %q", command)
	}
	text := string(out)
	for line := range strings.Lines(block) {
		if line == "...\n" {
			continue
		}
		if _, text, found = strings.Cut(text, line); !found {
			t.Errorf("docs/operations.md has a line that testdata/simulate/against.table does not have there: %q", line)
		}
	}
}
