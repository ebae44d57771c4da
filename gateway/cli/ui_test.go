package cli

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/serve/status/statustest"
)

// TestUI: the command prints the URL of a page that answers, and ends with its context.
func TestUI(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in := io.Pipe()
	var errs bytes.Buffer
	done := make(chan int, 1)
	go func() {
		app := App{Out: in, Err: &errs}
		done <- app.Main(ctx, []string{"ui", "--listen", "127.0.0.1:0", "--socket", daemon(t, statustest.New())})
		in.Close()
	}()
	line := make([]byte, 200)
	n, err := out.Read(line)
	if err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	url := strings.TrimSpace(string(line[:n]))
	response, err := http.Get(url + "api/status")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || !strings.Contains(string(body), `"node":"gw-1"`) {
		t.Errorf("%s: %s, %v", url, body, err)
	}
	cancel()
	select {
	case code := <-done:
		if code != exitOK || !strings.Contains(errs.String(), "Open this URL") {
			t.Errorf("exit %d: %s", code, errs.String())
		}
	case <-time.After(10 * time.Second):
		t.Error("ui does not end with its context")
	}
}

// TestUIRefusals: an address that others reach is a wrong use, and without a daemon there is no
// page.
func TestUIRefusals(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for args, want := range map[string]struct {
		code int
		says string
	}{
		"ui --listen 0.0.0.0:9475": {exitUsage, "0.0.0.0 is not a loopback address"},
		"ui --listen 9475":         {exitUsage, "write an address and port such as 127.0.0.1:9475"},
		"ui now":                   {exitUsage, "unknown command"},
		"ui --listen 127.0.0.1:0":  {exitFailure, "is not running"},
	} {
		code, out, errs := sluice(t, append(strings.Fields(args), "--socket", none)...)
		if code != want.code || out != "" || !strings.Contains(errs, want.says) {
			t.Errorf("%s: exit %d, %q %q", args, code, out, errs)
		}
	}
}
