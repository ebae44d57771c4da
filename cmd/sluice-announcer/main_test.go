package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/announce/view"
	"sluice.dev/sluice/internal/trusted"
	"sluice.dev/sluice/internal/usage"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/pagetest"
)

// TestSources: without --config the objects come from the API server, as in the chart, and with it
// from the file.
func TestSources(t *testing.T) {
	for _, flag := range []string{"--kubeconfig", "--config"} {
		missing := filepath.Join(t.TempDir(), "missing.yaml")
		c := command()
		c.SetArgs([]string{"--state-dir", t.TempDir(), "--node-name", "n", flag, missing})
		if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), flag) ||
			!strings.Contains(err.Error(), missing) {
			t.Errorf("%s %s: %v, want an error about that file", flag, missing, err)
		}
	}
}

// TestFilesAreTrusted: a kubeconfig or a file of objects that other users can write is rejected,
// because it decides which addresses routers send here.
func TestFilesAreTrusted(t *testing.T) {
	for _, flag := range []string{"--kubeconfig", "--config"} {
		file := filepath.Join(t.TempDir(), "file")
		if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chmod(file, 0o666)); err != nil {
			t.Fatal(err)
		}
		c := command()
		c.SetArgs([]string{"--state-dir", t.TempDir(), "--node-name", "n", "--listen", "", flag, file})
		var refused *trusted.Refusal
		if err := c.ExecuteContext(t.Context()); !errors.As(err, &refused) || refused.Path != file {
			t.Errorf("%s: %v, want a refusal of %s", flag, err, file)
		}
	}
}

func TestMain(m *testing.M) { machine.RunMain(m, main) }

// TestNobodyReadsTheLog: an announcer whose standard error is a full pipe without a reader, or a
// closed one, reads its objects, follows their changes, answers and ends.
func TestNobodyReadsTheLog(t *testing.T) {
	for name, gone := range map[string]bool{"full": false, "gone": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			config := filepath.Join(dir, "objects.yaml")
			peer(t, config, "first")
			c, err := machine.StartUnread(gone, "--state-dir", dir, "--node-name", "n", "--listen", "", "--config",
				config, "--router-id", "192.0.2.1", "--gateway", filepath.Join(dir, "pulse.sock"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for _, want := range []string{"first", "second", "third"} {
				peer(t, config, want)
				has(t, filepath.Join(dir, "status.sock"), want)
			}
			if err := c.End(10 * time.Second); err != nil {
				t.Error(err)
			}
		})
	}
}

// peer writes an object to a file.
func peer(t *testing.T, file, name string) {
	t.Helper()
	text := "apiVersion: sluice.dev/v1alpha1\nkind: BGPPeer\nmetadata: {name: " + name + "}\n" +
		"spec: {myASN: 64500, peerASN: 64501, peerAddress: 127.0.0.1}\n"
	next := file + ".next"
	if err := errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Rename(next, file)); err != nil {
		t.Fatal(err)
	}
}

// has waits until the announcer has exactly one peer.
func has(t *testing.T, socket, peer string) {
	t.Helper()
	var v *view.View
	var err error
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		v, err = view.Ask(ctx, socket)
		cancel()
		if err == nil && len(v.Peers) == 1 && v.Peers[0].Name == peer {
			return
		}
	}
	t.Fatalf("after 15 s it does not have peer %s: %+v, %v", peer, v, err)
}

// TestMetricsAreTheNodes: without --listen, metrics are served only on the node, as the gateway's
// are.
func TestMetricsAreTheNodes(t *testing.T) {
	address := command().Flags().Lookup("listen").DefValue
	if a, err := netip.ParseAddrPort(address); err != nil || !a.Addr().IsLoopback() {
		t.Errorf("--listen is %q by default: %v", address, err)
	}
}

// TestFlagsThatAreRefused: the error names each invalid flag.
func TestFlagsThatAreRefused(t *testing.T) {
	for flag, value := range map[string]string{
		"--hold": "1h", "--drain-delay": "-1s", "--log": "xml", "--router-id": "2001:db8::1",
		"--metallb-namespace": "",
	} {
		c := command()
		c.SetArgs([]string{"--state-dir", t.TempDir(), "--config", "none", flag, value})
		code, err := usage.Execute(t.Context(), c)
		if code != usage.Wrong || err == nil || !strings.Contains(err.Error(), flag+" is ") {
			t.Errorf("%s %s: %v, exit %d", flag, value, err, code)
		}
	}
}

// TestExitCodes: wrong usage and failure differ, and misspelt names get a suggestion.
func TestExitCodes(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--help"}, usage.OK, ""},
		{[]string{"--layer2-kye", "x"}, usage.Wrong, "did you mean --layer2-key?"},
		{[]string{"stauts"}, usage.Wrong, "did you mean status?"},
		{[]string{"status", "--sokcet", none}, usage.Wrong, "did you mean --socket?"},
		{[]string{"status", "--socket", none}, usage.Failure, "Name its socket with --socket"},
		{[]string{"--state-dir", t.TempDir(), "--config", none}, usage.Failure, "--config: "},
	} {
		c := command()
		c.SetOut(io.Discard)
		c.SetArgs(test.args)
		code, err := usage.Execute(t.Context(), c)
		if code != test.code || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%q: exit %d, %v, want %d, %s", test.args, code, err, test.code, test.want)
		}
	}
}

// TestStatusOfAStalledAnnouncer: the command of the probes fails with the reason, after it has
// printed the status. While the announcer waits, it is not ready, and it is alive.
func TestStatusOfAStalledAnnouncer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := view.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	var current atomic.Pointer[view.View]
	current.Store(&view.View{Node: "gateway-a", Gateway: "yes"})
	go view.Serve(t.Context(), l, current.Load, slog.New(slog.DiscardHandler))
	run := func(args ...string) (string, error) {
		var out strings.Builder
		c := command()
		c.SetOut(&out)
		c.SetArgs(append([]string{"status", "--socket", path}, args...))
		err := c.ExecuteContext(t.Context())
		return out.String(), err
	}
	if out, err := run(); err != nil || strings.Contains(out, "NOT UP TO DATE") {
		t.Errorf("%v: %s", err, out)
	}
	const forbidden = "objects of the API server: bgppeers.sluice.dev"
	current.Store(&view.View{Node: "gateway-a", Waiting: forbidden})
	if out, err := run(); err == nil || !strings.Contains(err.Error(), "ready: nothing is announced yet: "+forbidden) ||
		!strings.Contains(out, forbidden) {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := run("--live"); err != nil || !strings.Contains(out, forbidden) {
		t.Errorf("%v: %s", err, out)
	}
	stalled := &view.View{Node: "gateway-a", Stalled: []string{"announcement loop: stalled since 10:00:00"}}
	current.Store(stalled)
	if _, err := run("--live"); err == nil {
		t.Error("a stalled announcer is alive")
	}
	out, err := run()
	if err == nil || !strings.Contains(err.Error(), stalled.Stalled[0]) || !strings.Contains(out, "gateway-a") ||
		!strings.Contains(out, "NOT UP TO DATE: "+stalled.Stalled[0]) {
		t.Errorf("%v: %s", err, out)
	}
}

// TestAdvisedCommandsExist: each command line of the announcer in a page or a message is valid.
func TestAdvisedCommandsExist(t *testing.T) { pagetest.Commands(t, "../..", command, 2) }

// TestStatusAdvice: if no announcer answers, status names its own flag.
func TestStatusAdvice(t *testing.T) {
	c := command()
	c.SetArgs([]string{"status", "--socket", filepath.Join(t.TempDir(), "none")})
	err := c.ExecuteContext(t.Context())
	if err == nil || !strings.HasSuffix(err.Error(), "is sluice-announcer running? Name its socket with --socket") {
		t.Errorf("got %v", err)
	}
}

// TestListenIsDocumented: docs/reach.md has the default address of metrics, which only this node
// can reach.
func TestListenIsDocumented(t *testing.T) {
	address := command().Flag("listen").DefValue
	text, err := os.ReadFile("../../docs/reach.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(address, "127.0.0.1:") || !strings.Contains(string(text), "Metrics, at `"+address+"`") {
		t.Errorf("--listen is %q by default", address)
	}
}
