package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"sluice.dev/sluice/serve/status/statustest"
)

// capturing is a sample gateway whose captures have n packets.
func capturing(t *testing.T, n int, ends string) *statustest.Gateway {
	t.Helper()
	var b bytes.Buffer
	w, err := pcapgo.NewNgWriter(&b, layers.LinkTypeEthernet)
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(1, 0), CaptureLength: 4, Length: 60},
			[]byte{1, 2, 3, 4}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	g := statustest.New()
	g.CaptureBytes, g.CaptureEnds = b.Bytes(), ends
	return g
}

// TestCapture: a capture ends after --count packets or --duration, is in the file or on standard
// output, and what it does not have is said.
func TestCapture(t *testing.T) {
	file := filepath.Join(t.TempDir(), "web.pcapng")
	const rest = "; 3 over the rate of --rate 10000; 1 lost, because the reader was slow\n"
	for _, c := range []struct {
		args []string
		said string
	}{
		{[]string{"-w", file, "--count", "2"}, "sluice: 2 packets recorded" + rest},
		{[]string{"-w", "-", "--count", "1"}, "sluice: 1 packet recorded" + rest},
		{[]string{"-w", "-", "--duration", "200ms"}, "sluice: 3 packets recorded" + rest},
	} {
		socket := daemon(t, capturing(t, 3, ""))
		code, out, errs := sluice(t, append([]string{"capture", "--socket", socket}, c.args...)...)
		if code != exitOK || errs != c.said {
			t.Errorf("%v: exit %d, %q, want %q", c.args, code, errs, c.said)
		}
		b := []byte(out)
		if c.args[1] == file {
			var err error
			if b, err = os.ReadFile(file); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := pcapgo.NewNgReader(bytes.NewReader(b), pcapgo.DefaultNgReaderOptions); err != nil {
			t.Errorf("%v: %v", c.args, err)
		}
	}
}

// TestCaptureFails: the reason of an end by the gateway, and wrong usage.
func TestCaptureFails(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // without tcpdump
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"-w", "-"}, exitFailure, "the capture has ended: a hand-over"},
		{nil, exitUsage, "-w FILE"},
		{[]string{"-w", "-", "--rotate-size", "1"}, exitUsage, "need a file"},
		{[]string{"-w", "x", "--files", "1"}, exitUsage, "--rotate-size"},
		{[]string{"-w", "-", "--drop", "no_flw"}, exitUsage, "did you mean no_flow?"},
		{[]string{"-w", "-", "--client", "nobody"}, exitUsage, "no address"},
		{[]string{"-w", "-", "--bpf", "1 2 x"}, exitUsage, "--bpf"},
		{[]string{"-w", "-", "--bpf", "1", "tcp"}, exitUsage, "not both"},
		{[]string{"-w", "-", "-s", "-1"}, exitUsage, "negative"},
		{[]string{"-w", "-", "tcp", "port", "80"}, exitFailure, `--bpf "$(tcpdump -y EN10MB -ddd tcp port 80)"`},
		{[]string{"-w", "/no/such/directory/file"}, exitFailure, "/no/such/directory"},
		{[]string{"-w", "-", "-o", "json"}, exitUsage, "prints no result"},
	} {
		socket := daemon(t, capturing(t, 1, "a hand-over"))
		code, _, errs := sluice(t, append([]string{"capture", "--socket", socket}, c.args...)...)
		if code != c.code || !strings.Contains(errs, c.says) {
			t.Errorf("%v: exit %d, %q", c.args, code, errs)
		}
	}
}
