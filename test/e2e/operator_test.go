//go:build root

package e2e

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// TestReload: what can change while the gateway runs does; a bad file changes
// nothing; what needs a restart is reported.
func TestReload(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}})
	unserved := func() string {
		r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{at(vip4, 81)}, Requests: 1,
			Timeout: 500 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		for kind := range r.Errors {
			return kind
		}
		return "served"
	}
	reload := func(more string, done func() bool) {
		t.Helper()
		if err := l.gate.WriteConfiguration(l.gate.Configuration() + more); err != nil {
			t.Fatal(err)
		}
		l.within("the effect of "+more, done)
	}
	config := func() (problem string, restart []string) {
		st, err := l.gate.Client.Status(l.ctx, false)
		if err != nil {
			t.Fatal(err)
		}
		return st.Config.Error, st.Config.NeedRestart
	}
	reload("unservedVIPPort: drop\n", func() bool { return !strings.Contains(unserved(), "refused") })
	reload("unservedVIPPort: reject\n", func() bool { return strings.Contains(unserved(), "refused") })
	reload("unservedVIPPort: nonsense\n", func() bool {
		problem, _ := config()
		return strings.Contains(problem,
			"unservedVIPPort")
	})
	if got := unserved(); !strings.Contains(got, "refused") {
		t.Errorf("after a bad file the policy is not the last good one: %s", got)
	}
	// Refused by its mode, which needs no other content, also by a daemon that is confined.
	refused := func() bool { problem, _ := config(); return strings.Contains(problem, "chmod go-w") }
	for _, mode := range []os.FileMode{0o666, 0o600} {
		if err := os.Chmod(l.gate.ConfigFile(), mode); err != nil {
			t.Fatal(err)
		}
		l.eventually(5*time.Second, "the file's mode is seen", func() bool { return refused() == (mode == 0o666) })
	}
	reload("tuning: {ringSize: 1024}\n", func() bool {
		problem, restart := config()
		return problem == "" && len(restart) == 1 && strings.Contains(restart[0], "tuning.ringSize")
	})
	l.wantServed("after the reloads")
}

// TestOperator: pings, metrics, commands and a bad manifest, in one network.
func TestOperator(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}})
	l.wantPings()
	l.wantServed("before the scrape")
	l.wantMetrics()
	l.wantPage()
	l.wantCommands()
	l.wantProblem()
}

// wantPage serves the page by a socket that is forwarded, as ssh -L does it: its answers are the
// gateway's, and nobody gets them without the secret.
func (l *lab) wantPage() {
	t := l.t
	t.Helper()
	socket := filepath.Join(t.TempDir(), "forwarded.sock")
	forwarded, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer forwarded.Close()
	go forward(forwarded, l.gate.Socket())
	c := exec.CommandContext(l.ctx, daemonBinary, "--socket", socket, "ui", "--listen", "127.0.0.1:0")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(c.Process.Signal(os.Interrupt), c.Wait()); err != nil {
			t.Errorf("sluice ui after ^C: %v", err)
		}
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	page := strings.TrimSpace(line)
	get := func(url string) (code int, body []byte) {
		t.Helper()
		r, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if body, err = io.ReadAll(r.Body); err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, body
	}
	if code, body := get(page); code != http.StatusOK || !bytes.Contains(body, []byte("<script ")) {
		t.Errorf("the page: %d %s", code, body)
	}
	var shown, want []status.ServiceView
	code, body := get(page + "api/services")
	if err := json.Unmarshal(body, &shown); err != nil || code != http.StatusOK {
		t.Fatalf("%d %s: %v", code, body, err)
	}
	if want, err = l.gate.Client.Services(l.ctx); err != nil || len(want) < 2 || !reflect.DeepEqual(shown, want) {
		t.Errorf("the page has %+v, the gateway %+v, %v", shown, want, err)
	}
	for _, path := range []string{"status", "stats", "backends", "flows?protocol=tcp", "clients", "events",
		"reasons", "drops?over=1m",
		"explain?from=" + l.Clients[0].Addr4().String() + "&to=" + at(vip4, webPort).String() + "/TCP"} {
		if code, body := get(page + "api/" + path); code != http.StatusOK || len(body) < 3 {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	without, err := url.Parse(page)
	if err != nil {
		t.Fatal(err)
	}
	without.Path = "/api/services"
	if code, body := get(without.String()); code != http.StatusNotFound {
		t.Errorf("without the secret: %d %s", code, body)
	}
}

// forward connects what connects to a listener to a socket.
func forward(from net.Listener, to string) {
	for {
		c, err := from.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			there, err := net.Dial("unix", to)
			if err != nil {
				return
			}
			defer there.Close()
			go func() { _, _ = io.Copy(there, c); there.Close() }()
			_, _ = io.Copy(c, there)
		}()
	}
}

// wantMetrics checks the daemon's own endpoints, as a scraper and a kubelet see them.
func (l *lab) wantMetrics() {
	t := l.t
	t.Helper()
	get := func(path string) (int, string) {
		code, body, err := l.Gateway.Get(l.ctx, "http://127.0.0.1:9470"+path)
		if err != nil {
			t.Fatal(err)
		}
		return code, body
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, body := get(path); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	_, text := get("/metrics")
	for _, want := range []string{
		`sluice_service_flows_created_total{`, `sluice_service_packets_total{`, `sluice_worker_received_packets_total{`,
		`sluice_flow_table_used_flows{`, `namespace="default"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
}

// wantCommands runs the operator's commands as an operator would.
func (l *lab) wantCommands() {
	t := l.t
	t.Helper()
	sluice := func(args ...string) string {
		t.Helper()
		out, err := l.gate.Command(l.ctx, args...)
		if err != nil {
			t.Error(err)
		}
		return out
	}
	for _, c := range []struct{ args, want string }{
		{"services", "203.0.113.10:80"}, {"backends", "10.72.0.100:8080"},
		{"flows --protocol tcp -o wide", "default/web"},
		{"stats --verbose", "packets"}, {"status --wait", "Applied: "}, {"version", ""},
	} {
		if out := sluice(strings.Fields(c.args)...); !strings.Contains(out, c.want) {
			t.Errorf("sluice %s lacks %q:\n%s", c.args, c.want, out)
		}
	}
	// A drained backend gets nothing new.
	drained := netip.AddrPortFrom(l.Backends[0].Addr4(), backendPort)
	sluice("drain", drained.String())
	l.applied()
	r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{at(vip4, webPort)}, Requests: 100,
		Concurrency: 4})
	if err != nil {
		t.Fatal(err)
	}
	if r.Shares[l.Backends[0].Name] > 0 || r.Failed() > 0 {
		t.Errorf("after drain: shares %v, errors %v", r.Shares, r.Errors)
	}
	sluice("undrain", drained.String())
	out := sluice("flows", "delete", "--vip", vip4)
	left := sluice("flows", "--vip", vip4, "-o", "wide")
	if strings.Contains(left, "default/web") {
		t.Errorf("flows delete said %q and left:\n%s", out, left)
	}
}

// wantProblem writes a bad manifest: status has one clear problem, and what is good is served.
func (l *lab) wantProblem() {
	t := l.t
	t.Helper()
	if err := l.gate.Write("bad.yaml",
		[]byte("apiVersion: v1\nkind: Service\nmetadata: {name: bad, namespace: default}\nspec: {ports: [{port: "+
			"99999}], sessionAffinityy: None}\n")); err != nil {
		t.Fatal(err)
	}
	l.applied()
	st, err := l.gate.Client.Status(l.ctx, false)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, p := range st.Problems {
		t.Logf("problem: %+v", p)
		found = found || strings.Contains(p.Object, "default/bad")
	}
	if !found {
		t.Error("no problem names Service default/bad")
	}
	l.wantServed("with a bad manifest beside")
}

// wantPings: a VIP answers echo requests by itself.
func (l *lab) wantPings() {
	l.t.Helper()
	for _, vip := range []string{vip4, vip6} {
		if err := pingVIP(l.Clients[0], vip, 8); err != nil {
			l.t.Errorf("%s: %v", vip, err)
		}
	}
}

// pingVIP is ping for a VIP of either family.
func pingVIP(from *topo.Host, vip string, size int) error {
	if netip.MustParseAddr(vip).Is4() {
		return ping(from, vip, unix.AF_INET, unix.IPPROTO_ICMP, 8, size)
	}
	return ping(from, vip, unix.AF_INET6, unix.IPPROTO_ICMPV6, 128, size)
}

// ping sends one echo request of so many bytes of data from an ICMP socket of the host's kernel,
// which sends it in fragments where it is too big, and waits for the reply, which that kernel puts
// together and verifies.
func ping(from *topo.Host, vip string, domain, proto int, request byte, size int) error {
	return from.Run(func() error {
		fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "icmp")
		defer f.Close()
		c, err := net.FilePacketConn(f)
		if err != nil {
			return err
		}
		defer c.Close()
		const id = 0x5151
		message := append([]byte{request, 0, 0, 0, id >> 8, id & 0xff, 0, 1}, make([]byte, size)...)
		for i := range size {
			message[8+i] = byte(i * 7)
		}
		if domain == unix.AF_INET {
			binary.BigEndian.PutUint16(message[2:], onesComplement(message))
		}
		if _, err := c.WriteTo(message, &net.IPAddr{IP: net.ParseIP(vip)}); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
		b := make([]byte, 1<<16)
		for {
			n, peer, err := c.ReadFrom(b)
			if err != nil {
				return fmt.Errorf("no reply: %w", err)
			}
			if peer.String() == vip && n == len(message) && string(b[4:n]) == string(message[4:]) && b[0] != request {
				return nil
			}
		}
	})
}

// onesComplement is the Internet checksum (RFC 1071); ICMPv6's is the kernel's to fill in.
func onesComplement(b []byte) uint16 {
	var sum uint64
	for i := range b {
		sum += uint64(b[i]) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// TestNobodyReadsTheLog: a gateway whose standard error is a full pipe that nobody reads starts,
// applies changes and serves. When the reader is gone it goes on, and says that lines are lost.
// When there is one again the log has how many they were. It ends while nobody reads, too.
func TestNobodyReadsTheLog(t *testing.T) {
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 1}, small: true, quick: true})
	if err := l.gate.Stop(); err != nil {
		t.Fatal(err)
	}
	file := l.gate.LogFile()
	if err := errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	defer func() { // a report of a failure reads a file that ends
		if err := errors.Join(os.Remove(file), os.WriteFile(file, nil, 0o600)); err != nil {
			t.Error(err)
		}
	}()
	reader := fullFIFO(t, file)
	if err := l.gate.Start(l.ctx); err != nil {
		t.Fatalf("while nobody reads the log: %v", err)
	}
	generation := func() uint64 {
		t.Helper()
		st, err := l.gate.Client.Status(l.ctx, false)
		if err != nil {
			t.Fatal(err)
		}
		return st.Snapshot.Seen
	}
	change := func(hosts ...*topo.Host) {
		t.Helper()
		before := generation()
		l.apply(l.web(hosts...), l.dns(hosts...))
		l.applied()
		if after := generation(); after <= before {
			t.Errorf("generation %d after a change, %d before", after, before)
		}
		l.wantServed("while nobody reads the log")
	}
	change(l.Backends[0])
	change(l.Backends...)

	reader.Close() // the write under way fails
	dropping := func() bool {
		st, err := l.gate.Client.Status(l.ctx, false)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(st.Conditions, func(c status.ConditionView) bool {
			return c.Name == "log" && strings.Contains(c.Detail, "broken pipe")
		})
	}
	l.eventually(5*time.Second, "status has the lines that are lost", dropping)
	change(l.Backends[0])

	reader = openFIFO(t, file)
	read := make(chan string, 1)
	go func() {
		text := make([]byte, 1<<20)
		n := 0
		for !strings.Contains(string(text[:n]), "not written") && n < len(text) {
			more, err := reader.Read(text[n:])
			if n += more; err != nil {
				break
			}
		}
		read <- string(text[:n])
	}()
	for _, more := range []string{"unservedVIPPort: nonsense\n", ""} { // each is a line of the log
		if err := l.gate.WriteConfiguration(l.gate.Configuration() + more); err != nil {
			t.Fatal(err)
		}
		l.eventually(5*time.Second, "the configuration is read", func() bool {
			st, err := l.gate.Client.Status(l.ctx, false)
			return err == nil && (st.Config.Error != "") == (more != "")
		})
	}
	select {
	case text := <-read:
		if !strings.Contains(text, "lines were not written: ") || !strings.Contains(text, "broken pipe") {
			t.Errorf("the log: %s", text)
		}
	case <-time.After(5 * time.Second):
		t.Error("the log does not say how many lines were lost")
	}
	reader.Close()
	fullFIFO(t, file)
	if err := l.gate.Stop(); err != nil {
		t.Errorf("its end while nobody reads the log: %v", err)
	}
	if err := l.gate.Start(l.ctx); err != nil { // for the checks of every test
		t.Fatal(err)
	}
}

// openFIFO opens a FIFO for reading and writing, so that opening waits for nobody.
func openFIFO(t *testing.T, file string) *os.File {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// fullFIFO is openFIFO, and leaves no room in the FIFO.
func fullFIFO(t *testing.T, file string) *os.File {
	t.Helper()
	f := openFIFO(t, file)
	if err := machine.FillPipe(f); err != nil {
		t.Fatal(err)
	}
	return f
}
