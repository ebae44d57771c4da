package probe

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"sluice.dev/sluice/control/endpointhealth"
	"sluice.dev/sluice/control/objects"
)

// hostileServer is set for the process that TestHostileServer serves in.
const hostileServer = "SLUICE_TEST_HOSTILE_SERVER"

// hostile are servers that hold or load their clients, by name.
var hostile = map[string]func(net.Conn){
	"silent":  func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
	"trickle": func(c net.Conn) { endless(c, "HTTP/1.1 200 OK\r\nA: ", "a", time.Millisecond) },
	"headers": func(c net.Conn) { endless(c, "HTTP/1.1 200 OK\r\n", strings.Repeat("Abc: def\r\n", 100), 0) },
	"line":    func(c net.Conn) { endless(c, "HTTP/1.1 200 OK\r\nA: ", strings.Repeat("a", 4096), 0) },
	"body":    func(c net.Conn) { endless(c, "HTTP/1.1 200 OK\r\n\r\n", strings.Repeat("a", 4096), 0) },
	"early":   func(c net.Conn) { endless(c, "", "HTTP/1.1 103 Early Hints\r\n\r\n", 0) },
	// The begin of a TLS record, and of an HTTP/2 frame of settings, that do not end.
	"record":   func(c net.Conn) { endless(c, "\x16\x03\x03\x3f\xff\x02\x00\x3f\xfb", "a", 10*time.Millisecond) },
	"settings": func(c net.Conn) { endless(c, "", "\x00\x00\x00\x04\x00\x00\x00\x00\x00", 0) },
	"chain":    serveTLS(hostileCertificate(elliptic.P521(), 100<<10)),
	"costly":   serveTLS(hostileCertificate(elliptic.P521(), 10<<10)),
	"honest":   serveTLS(hostileCertificate(elliptic.P256(), 0)),
	"plain": func(c net.Conn) {
		_, _ = bufio.NewReader(c).ReadString('\n')
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	},
}

func endless(c net.Conn, begin, rest string, pause time.Duration) {
	if _, err := io.WriteString(c, begin); err != nil {
		return
	}
	for {
		if _, err := io.WriteString(c, rest); err != nil {
			return
		}
		time.Sleep(pause)
	}
}

// hostileCertificate returns a certificate followed by others, of some bytes together.
func hostileCertificate(curve elliptic.Curve, length int) func() tls.Certificate {
	return func() tls.Certificate {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			panic(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "shop"},
			NotAfter: time.Now().Add(time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			panic(err)
		}
		c := tls.Certificate{PrivateKey: key, Certificate: [][]byte{der}}
		for n := 0; n < length; n += len(der) {
			c.Certificate = append(c.Certificate, der)
		}
		return c
	}
}

func serveTLS(certificate func() tls.Certificate) func(net.Conn) {
	var config *tls.Config
	if os.Getenv(hostileServer) != "" {
		config = &tls.Config{Certificates: []tls.Certificate{certificate()}}
	}
	return func(c net.Conn) {
		t := tls.Server(c, config)
		if _, err := bufio.NewReader(t).ReadString('\n'); err == nil {
			_, _ = io.WriteString(t, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			_, _ = io.Copy(io.Discard, t)
		}
	}
}

// TestHostileServer is the process of the servers: it prints their addresses and ends with its
// standard input.
func TestHostileServer(t *testing.T) {
	if os.Getenv(hostileServer) == "" {
		return
	}
	at := map[string]string{}
	for name, serve := range hostile {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		at[name] = l.Addr().String()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { defer c.Close(); serve(c) }()
			}
		}()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at["grpc"] = l.Addr().String()
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(l) }()
	if err := json.NewEncoder(os.Stdout).Encode(at); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// startHostile runs the servers and returns their addresses.
func startHostile(t testing.TB) (at map[string]string) {
	t.Helper()
	c := exec.Command(os.Args[0], "-test.run=^TestHostileServer$")
	c.Env = append(os.Environ(), hostileServer+"=1")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = c.Wait() })
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(line, &at); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return at
}

// use is what this process has of what checks take.
type use struct{ memory, descriptors, goroutines int }

func used(t *testing.T) use {
	t.Helper()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return use{int(m.HeapInuse + m.StackInuse), len(list), runtime.NumGoroutine()}
}

// TestHostileServers measures what a check takes while it is under way, whatever the endpoint does:
// docs/limits.md has the bounds.
func TestHostileServers(t *testing.T) {
	if os.Getenv(hostileServer) != "" {
		return
	}
	at := startHostile(t)
	at["full"], _ = silentPort(t)
	for _, tt := range []struct{ check, server string }{
		{"tcp", "full"}, {"http", "full"}, {"http", "silent"}, {"http", "trickle"}, {"http", "headers"},
		{"http", "line"}, {"http", "body"}, {"http", "early"}, {"https", "full"}, {"https", "silent"},
		{"https", "record"}, {"https", "chain"}, {"https", "costly"}, {"grpc", "full"}, {"grpc", "silent"},
		{"grpc", "settings"}, {"grpc", "headers"}, {"udp require_reply", "silent"}, {"dns", "silent"},
	} {
		t.Run(tt.check+" "+tt.server, func(t *testing.T) { measureHostile(t, tt.check, at[tt.server]) })
	}
}

func measureHostile(t *testing.T, check, to string) {
	const (
		n         = 200
		timeout   = " timeout=2s"
		mostBytes = 96 << 10 // garbage included
		mostFiles = MostDescriptors
		mostGo    = 4
	)
	if strings.HasPrefix(check, "udp") || check == "dns" {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		to = c.LocalAddr().String()
	}
	list, err := objects.ParseChecks(check + timeout)
	if err != nil {
		t.Fatal(err)
	}
	p := newProber(t, nil)
	runtime.GC()
	before, most := used(t), use{}
	for range n {
		p.Start(endpointhealth.Start{Target: netip.MustParseAddrPort(to), Check: list[0].Check})
	}
	begun, spent := time.Now(), time.Duration(0)
	for ended := 0; ended < n; {
		select {
		case r := <-p.Results():
			for _, f := range r {
				spent += f.Result.Spent
			}
			ended += len(r)
		case <-time.After(100 * time.Millisecond):
			if time.Since(begun) > 30*time.Second {
				t.Fatalf("%d of %d checks ended", ended, n)
			}
		}
		now := used(t)
		most.memory = max(most.memory, now.memory-before.memory)
		most.descriptors = max(most.descriptors, now.descriptors-before.descriptors)
		most.goroutines = max(most.goroutines, now.goroutines-before.goroutines)
	}
	t.Logf("a check: %d KiB, %.1f descriptors, %.1f goroutines, %v charged", most.memory/n>>10,
		float64(most.descriptors)/n, float64(most.goroutines)/n, (spent / n).Round(time.Microsecond))
	if most.memory > n*mostBytes || most.descriptors > n*mostFiles || most.goroutines > n*mostGo {
		t.Errorf("%d checks take %+v, want %d bytes, %d descriptors, %d goroutines each at most", n, most, mostBytes,
			mostFiles, mostGo)
	}
}

// TestManyBytesAreRefused: what an endpoint may make a check read has a bound.
func TestManyBytesAreRefused(t *testing.T) {
	if os.Getenv(hostileServer) != "" {
		return
	}
	at, p := startHostile(t), newProber(t, nil)
	for _, tt := range []struct {
		check, server string
		ok            bool
		detail        string
	}{
		{"http", "line", false, "than a check reads"},
		{"http", "headers", false, "than a check reads"},
		{"http", "early", false, "than a check reads"},
		{"http", "trickle", false, "than a check reads"},
		{"http", "body", true, "status 200"},
		{"https", "chain", false, "bytes of TLS handshake"},
		{"https", "costly", true, "status 200"},
	} {
		r := check(t, p, at[tt.server], tt.check)
		expect(t, r, tt.ok, tt.detail)
	}
}

// TestCutLine: the error of a read that ends within a line is the check's, and the line no fault.
func TestCutLine(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"HTT", "HTTP/1.1 200 OK\r\nContent-Le", "HTTP/1.1 200 OK"} {
		cut := io.MultiReader(strings.NewReader(text), iotest.ErrReader(errTooMuch))
		if h, err := readHead(bufio.NewReader(cut)); !errors.Is(err, errTooMuch) {
			t.Errorf("%q: %+v, %v", text, h, err)
		}
	}
}

// TestResumption: the second check of an endpoint resumes its session and is charged less; a check
// of another Service does not see it.
func TestResumption(t *testing.T) {
	if os.Getenv(hostileServer) != "" {
		return
	}
	at, p := startHostile(t), newProber(t, nil)
	list, err := objects.ParseChecks("https")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		namespace string
		resumed   bool
	}{{"a", false}, {"a", true}, {"a", true}, {"b", false}} {
		p.Start(endpointhealth.Start{Target: netip.MustParseAddrPort(at["honest"]), Check: list[0].Check,
			Namespace: tt.namespace})
		r := (<-p.Results())[0].Result
		if resumed := r.Spent <= endpointhealth.CheckCost(objects.CheckHTTPS); !r.OK || resumed != tt.resumed {
			t.Errorf("%+v, want that it passed and resumed is %v", r, tt.resumed)
		}
	}
}

// BenchmarkCost has the processor time of a check, the kernel's part included, that of the server
// left out.
func BenchmarkCost(b *testing.B) {
	at := startHostile(b)
	for _, tt := range []struct{ check, server string }{
		{"tcp", "plain"}, {"http", "plain"}, {"https", "honest"}, {"https", "costly"}, {"https", "chain"},
		{"http", "trickle"}, {"grpc", "grpc"},
	} {
		b.Run(tt.check+"/"+tt.server, func(b *testing.B) {
			p, err := New(nil, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			list, err := objects.ParseChecks(tt.check + " timeout=1s")
			if err != nil {
				b.Fatal(err)
			}
			var before, after unix.Rusage
			_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
			spent := time.Duration(0)
			for b.Loop() {
				p.Start(endpointhealth.Start{Target: netip.MustParseAddrPort(at[tt.server]), Check: list[0].Check})
				spent += (<-p.Results())[0].Result.Spent
			}
			_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
			cost := after.Utime.Nano() - before.Utime.Nano() + after.Stime.Nano() - before.Stime.Nano()
			b.ReportMetric(float64(cost)/float64(b.N)/1000, "cpu-us/check")
			b.ReportMetric(float64(spent.Microseconds())/float64(b.N), "charged-us/check")
		})
	}
}
