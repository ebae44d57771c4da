package simulate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/serve/status"
)

const (
	web4, web6 = "203.0.113.10:80", "[2001:db8:f::10]:80"
	dns        = "203.0.113.11:53"
	admin      = "203.0.113.12:443"
)

// recorder writes a capture as pcap.
type recorder struct {
	t    testing.TB
	path string
	file *os.File
	w    *pcapgo.Writer
	now  time.Time
}

func record(t testing.TB) *recorder {
	t.Helper()
	r := &recorder{t: t, path: filepath.Join(t.TempDir(), "clients.pcap"), now: time.Unix(1_790_000_000, 0)}
	var err error
	if r.file, err = os.Create(r.path); err != nil {
		t.Fatal(err)
	}
	r.w = pcapgo.NewWriterNanos(r.file)
	if err := r.w.WriteFileHeader(1<<16, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	return r
}

// frame adds the first snap bytes of a frame, a millisecond after the one before.
func (r *recorder) frame(b []byte, snap int) {
	r.t.Helper()
	r.now = r.now.Add(time.Millisecond)
	ci := gopacket.CaptureInfo{Timestamp: r.now, CaptureLength: min(len(b), snap), Length: len(b)}
	if err := r.w.WritePacket(ci, b[:ci.CaptureLength]); err != nil {
		r.t.Fatal(err)
	}
}

func (r *recorder) add(list ...*headertest.Packet) {
	r.t.Helper()
	for _, p := range list {
		r.frame(p.Bytes(), 1<<16)
	}
}

// connect adds a handshake, with the answer of the backend.
func (r *recorder) connect(client, vip string) {
	r.t.Helper()
	r.add(headertest.TCP(client, vip, headertest.SYN), headertest.TCP(vip, client, headertest.SYN|headertest.ACK),
		headertest.TCP(client, vip, headertest.ACK))
}

// data is a segment of a client with data.
func data(client, vip string, payload int) *headertest.Packet {
	p := headertest.TCP(client, vip, headertest.ACK|headertest.PSH)
	p.Payload = bytes.Repeat([]byte("data"), payload/4+1)[:payload]
	return p
}

func (r *recorder) close() string {
	r.t.Helper()
	if err := r.file.Close(); err != nil {
		r.t.Fatal(err)
	}
	return r.path
}

func query(capture string) *status.SimulateQuery {
	return &status.SimulateQuery{Capture: capture, Manifests: "testdata/old", Config: "testdata/gateway.yaml",
		MTU: status.DefaultSimulateMTU}
}

func simulate(t testing.TB, q *status.SimulateQuery) status.SimulateView {
	t.Helper()
	v, err := Run(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// edited returns a directory with the old manifests, in which a text is replaced once.
func edited(t testing.TB, from, to string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/old/shop.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), from) {
		t.Fatalf("the manifests do not have %q", from)
	}
	dir := t.TempDir()
	err = os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(strings.Replace(string(text), from, to, 1)), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// clientOf returns a client's socket by number.
func clientOf(n int) string { return fmt.Sprintf("198.51.100.%d:%d", 1+n%50, 40000+n) }

// dropsOf returns packets and flows by drop reason.
func dropsOf(v *status.SimulateView) map[string][2]uint64 {
	m := map[string][2]uint64{}
	for _, d := range v.Drops {
		m[d.Reason] = [2]uint64{d.Packets, d.Flows}
	}
	return m
}

// TestVerdicts: each kind of packet takes part as it should, and has the verdict of a gateway.
func TestVerdicts(t *testing.T) {
	r := record(t)
	r.connect("198.51.100.1:1000", web4)                           // 2 packets of a client, 1 answer
	r.connect("[2001:db8:c::1]:1000", web6)                        // 2, 1
	r.add(headertest.UDP("198.51.100.1:2000", dns, "question"))    // 1
	r.add(headertest.UDP(dns, "198.51.100.1:2000", "answer"))      // 0, 1
	r.add(data("198.51.100.9:9", web4, 10))                        // open before
	r.add(headertest.TCP("192.0.2.5:7", admin, headertest.SYN))    // source_range
	r.add(headertest.TCP("198.51.100.66:7", web4, headertest.SYN)) // denied
	r.add(headertest.TCP("198.51.100.1:5", "203.0.113.10:81", headertest.SYN))
	r.add(headertest.TCP("198.51.100.1:5", "198.51.100.2:81", headertest.SYN))                // other
	r.add(headertest.TCP("203.0.113.10:80", "198.51.100.77:1", headertest.ACK))               // other: it has no flow
	r.add(headertest.Echo("198.51.100.1", "203.0.113.10", 1, 1, false))                       // answered
	r.add(headertest.TCP("127.0.0.1:5", web4, headertest.SYN))                                // martian_source
	quote := headertest.TCP(web4, "198.51.100.1:1000", headertest.ACK)                        // of an answer
	quote.Payload = make([]byte, 1400)                                                        //
	r.add(headertest.ICMPError("198.51.100.254", "203.0.113.10", 3, 1, 0, quote.Bytes(), 28)) // forwarded
	for _, f := range headertest.Split(headertest.UDP("198.51.100.3:3000", dns, strings.Repeat("x", 2000)).Bytes(),
		1000, 7) {
		r.frame(f, 1<<16) // 3
	}
	v := simulate(t, query(r.close()))

	wantCapture := status.SimulateCapture{Packets: 20, Clients: 14, Replies: 3, Earlier: 1, Others: 2}
	gotCapture := v.Capture
	gotCapture.File, gotCapture.First, gotCapture.Last = "", time.Time{}, time.Time{}
	if gotCapture != wantCapture {
		t.Errorf("capture %+v, want %+v", gotCapture, wantCapture)
	}
	if want := (status.SimulateCounts{Forwarded: 10, Dropped: 4}); v.Packets != want {
		t.Errorf("packets %+v, want %+v", v.Packets, want)
	}
	if want := (status.SimulateCounts{Forwarded: 4, Dropped: 3, Earlier: 1}); v.Flows != want {
		t.Errorf("flows %+v, want %+v", v.Flows, want)
	}
	want := map[string][2]uint64{"source_range": {1, 1}, "denied_dropped": {1, 1}, "frontend_rejected": {1, 1},
		"martian_source": {1, 0}}
	if diff := cmp.Diff(want, dropsOf(&v)); diff != "" {
		t.Errorf("drops, -want +got:\n%s", diff)
	}
	if len(v.Findings) != 1 || v.Findings[0] != "flows that are dropped: 3" {
		t.Errorf("findings %q", v.Findings)
	}
}

// TestShares: flows are spread by weight, and the expected shares add up to 1.
func TestShares(t *testing.T) {
	const n = 2000
	r := record(t)
	for i := range n {
		r.connect(clientOf(i), web4)
	}
	q := query(r.close())
	q.Manifests = edited(t, "metadata: {name: web, namespace: shop}",
		`metadata: {name: web, namespace: shop, annotations: {sluice.dev/weights: "10.1.0.13=2"}}`)
	v := simulate(t, q)
	if len(v.Services) != 1 || v.Services[0].Flows != n || len(v.Services[0].Backends) != 4 {
		t.Fatalf("services %+v", v.Services)
	}
	for i, want := range []float64{0.2, 0.2, 0.4, 0.2} {
		b := v.Services[0].Backends[i]
		if b.Expected != want || b.Share < want-0.05 || b.Share > want+0.05 || b.PortsPeak != b.Flows ||
			b.PortsLimit != 64512 {
			t.Errorf("backend %+v, want a share of %v", b, want)
		}
	}
	if len(v.Findings) != 0 {
		t.Errorf("findings %q", v.Findings)
	}
}

// TestAgainst: with one backend less few other flows move; source ranges decide about lost and
// gained flows; a scheduler by turns is not compared.
func TestAgainst(t *testing.T) {
	const n = 400
	r := record(t)
	for i := range n {
		r.connect(clientOf(i), web4)
	}
	r.connect("198.51.100.200:1", admin) // only the old one allows it
	r.connect("192.0.2.5:1", admin)      // only the new one
	r.connect("198.51.100.7:1", admin)   // both: by turns
	path := r.close()
	old := simulate(t, query(path))
	q := query(path)
	q.Manifests, q.Against = "testdata/new", "testdata/old"
	v := simulate(t, q)
	c := v.Against
	gone := old.Services[1].Backends[1]
	// A table of Maglev with one backend less moves some other flows, too.
	if gone.Address != netip.MustParseAddrPort("10.1.0.12:8080") || c.Moved.Flows < gone.Flows ||
		c.Moved.Flows > gone.Flows+n/10 {
		t.Errorf("%d flows moved, want the flows of %+v and few others", c.Moved.Flows, gone)
	}
	if c.Lost.Flows != 1 || c.Gained.Flows != 1 || c.Same+c.Chance+c.Moved.Flows != n+1 {
		t.Errorf("comparison %+v", c)
	}
	if x := c.Moved.Example; x == nil || x.Against.Backend == x.Result.Backend || x.Result.Backend == gone.Address ||
		x.Result.Service != "shop/web:http" {
		t.Errorf("example %+v", x)
	}
	if x := c.Lost.Example; x == nil || x.Result.Reason != "source_range" ||
		x.Against.Verdict != status.VerdictForward || x.Client.String() != "198.51.100.200:1" {
		t.Errorf("example %+v", x)
	}
	want := []string{fmt.Sprint("flows that go to another backend: ", c.Moved.Flows),
		"flows that are no longer forwarded: 1"}
	if diff := cmp.Diff(want, v.Findings); diff != "" {
		t.Errorf("findings: %s", diff)
	}
	q.Manifests = "testdata/old"
	if v := simulate(t, q); v.Against.Same+v.Against.Chance != n+3 || len(v.Findings) != 0 {
		t.Errorf("against itself: %+v %q", v.Against, v.Findings)
	}
	q.Against = "testdata/gateway.yaml" // a configuration with the same manifests
	if v := simulate(t, q); v.Against.Same+v.Against.Chance != n+3 {
		t.Errorf("against the same configuration: %+v", v.Against)
	}
}

// TestTime: the capture's time is the clock. A connection with answers outlives a pause that ends a
// half-open one.
func TestTime(t *testing.T) {
	for _, answers := range []bool{true, false} {
		r := record(t)
		const client = "198.51.100.1:1000"
		if answers {
			r.connect(client, web4)
		} else {
			r.add(headertest.TCP(client, web4, headertest.SYN), headertest.TCP(client, web4, headertest.ACK))
		}
		r.now = r.now.Add(20 * time.Minute)
		r.add(data(client, web4, 100))
		v := simulate(t, query(r.close()))
		want := map[string][2]uint64{}
		if !answers {
			want["no_flow"] = [2]uint64{1, 0} // a packet; the flow was forwarded
		}
		if diff := cmp.Diff(want, dropsOf(&v)); diff != "" {
			t.Errorf("answers %v: drops, -want +got:\n%s", answers, diff)
		}
		if note := strings.Contains(strings.Join(v.Notes, ";"), "half-open"); note == answers {
			t.Errorf("answers %v: notes %q", answers, v.Notes)
		}
	}
}

// TestSnapLength: a capture with the beginnings of packets is simulated like one with all bytes, as
// far as they have headers.
func TestSnapLength(t *testing.T) {
	r := record(t)
	const client = "198.51.100.1:1000"
	r.add(headertest.TCP(client, web4, headertest.SYN), headertest.TCP(web4, client, headertest.SYN|headertest.ACK))
	for range 3 {
		r.frame(data(client, web4, 1000).Bytes(), 96)
		r.frame(data(web4, client, 1000).Bytes(), 96)
	}
	r.frame(data(client, web4, 1000).Bytes(), 30)
	r.now = r.now.Add(20 * time.Minute)
	r.frame(data(client, web4, 1000).Bytes(), 96)
	v := simulate(t, query(r.close()))
	if v.Packets.Forwarded != 5 || v.Packets.Dropped != 0 || v.Capture.Replies != 4 || v.Capture.Unusable != 1 {
		t.Errorf("packets %+v of %+v", v.Packets, v.Capture)
	}
	if !strings.Contains(strings.Join(v.Notes, ";"), "only the beginning of 7 packets") {
		t.Errorf("notes %q", v.Notes)
	}
}

// TestMTU: packets that exceed it are dropped, or fragmented if they may be.
func TestMTU(t *testing.T) {
	r := record(t)
	const client = "198.51.100.1:1000"
	r.connect(client, web4)
	for _, df := range []bool{true, false} {
		p := data(client, web4, 1361) // 1401 bytes
		p.DF = df
		r.add(p)
	}
	q := query(r.close())
	if v := simulate(t, q); v.MTU != (status.SimulateMTU{Bytes: 1500, Largest: 1401}) || len(v.Findings) != 0 {
		t.Errorf("%+v, %q", v.MTU, v.Findings)
	}
	q.MTU = 1400
	want := status.SimulateMTU{Bytes: 1400, TooBig: 1, Fragmented: 1, Largest: 1401}
	v := simulate(t, q)
	if v.MTU != want || fmt.Sprint(v.Findings) != "[packets that exceed the MTU: 1]" {
		t.Errorf("%+v, want %+v; %q", v.MTU, want, v.Findings)
	}
	q.Against, q.MTU = q.Manifests, 1400
	if v := simulate(t, q); len(v.Findings) != 0 {
		t.Errorf("as many exceed it on the other gateway: %q", v.Findings)
	}
}

// TestLongPacket: a packet of GRO, of 60,000 bytes, passes where the MTU allows it.
func TestLongPacket(t *testing.T) {
	r := record(t)
	const client = "198.51.100.1:1000"
	r.connect(client, web4)
	r.add(data(client, web4, 60000))
	q := query(r.close())
	q.MTU = maxMTU
	if v := simulate(t, q); v.Packets.Forwarded != 3 || v.MTU.Largest != 60040 {
		t.Errorf("%+v, %+v", v.Packets, v.MTU)
	}
}

// TestPorts: towards one backend there are as many flows as source ports.
func TestPorts(t *testing.T) {
	text, err := os.ReadFile("testdata/gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "few.yaml")
	few := strings.Replace(string(text), `snat: {addresses: [10.0.1.2, "2001:db8:1::2"]}`,
		"snat: {ports: 20000-21023}", 1)
	if err := os.WriteFile(config, []byte(few), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := edited(t, "{addresses: [10.1.0.11]}, {addresses: [10.1.0.12]}, {addresses: [10.1.0.13]}, ", "")
	r := record(t)
	for i := range 1100 {
		r.connect(clientOf(i), web4)
	}
	q := query(r.close())
	q.Config, q.Manifests = config, dir
	v := simulate(t, q)
	b := v.Services[0].Backends[0]
	if b.PortsLimit != 1024 || b.PortsPeak != 1024 || b.Flows != 1024 {
		t.Errorf("backend %+v", b)
	}
	if d := dropsOf(&v)["snat_ports_exhausted"]; d[1] != 76 {
		t.Errorf("drops %v", dropsOf(&v))
	}
	if !strings.Contains(strings.Join(v.Findings, ";"), "packets without a free source port") {
		t.Errorf("findings %q", v.Findings)
	}
}

// TestErrors: input that cannot be simulated is one clear message.
func TestErrors(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	broken := filepath.Join(dir, "broken")
	if err := os.Mkdir(broken, 0o700); err != nil {
		t.Fatal(err)
	}
	write("broken/a.yaml", "kind: Service\n")
	others := record(t)
	others.add(headertest.TCP("198.51.100.1:5", "198.51.100.2:81", headertest.SYN))
	earlier := record(t)
	earlier.add(data("198.51.100.9:9", web4, 10))
	good := record(t)
	good.connect("198.51.100.1:5", web4)
	goodPath := good.close()
	cooked := func(link uint32) string {
		text := "\xd4\xc3\xb2\xa1\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x00\x00" +
			string([]byte{byte(link), byte(link >> 8), 0, 0}) +
			"\x01\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x04\x00\x00\x00abcd"
		return write(fmt.Sprint("link", link), text)
	}
	for _, c := range []struct {
		name string
		edit func(*status.SimulateQuery)
		want string
	}{
		{"no file", func(q *status.SimulateQuery) { q.Capture = dir + "/none" }, "no such file or directory"},
		{"directory", func(q *status.SimulateQuery) { q.Capture = dir }, "is a directory"},
		{"empty", func(q *status.SimulateQuery) { q.Capture = write("empty", "") }, "is empty"},
		{"text", func(q *status.SimulateQuery) { q.Capture = write("text", "hello, world") },
			"is neither pcap nor pcapng"},
		{"header only", func(q *status.SimulateQuery) { q.Capture = write("h", "\xd4\xc3\xb2\xa1\x02") },
			"ends within its first header"},
		{"no packet", func(q *status.SimulateQuery) { q.Capture = record(t).close() }, "has no packet"},
		{"any", func(q *status.SimulateQuery) { q.Capture = cooked(113) }, "link type 113, and only Ethernet (1)"},
		{"raw IP", func(q *status.SimulateQuery) { q.Capture = cooked(101) }, "link type 101"},
		{"others", func(q *status.SimulateQuery) { q.Capture = others.close() },
			"none of the 1 packets of " + others.path + " is for a frontend of testdata/old"},
		{"earlier", func(q *status.SimulateQuery) { q.Capture = earlier.close() }, "open when it began"},
		{"no manifests", func(q *status.SimulateQuery) { q.Manifests = dir + "/none" }, "read manifests"},
		{"broken manifests", func(q *status.SimulateQuery) { q.Manifests = broken }, "broken/a.yaml"},
		{"broken against", func(q *status.SimulateQuery) { q.Against = broken }, "broken/a.yaml"},
		{"no against", func(q *status.SimulateQuery) { q.Against = dir + "/none" }, "read manifests"},
		{"configuration", func(q *status.SimulateQuery) { q.Config = write("c.yaml", "x: 1") }, "c.yaml"},
		{"node", func(q *status.SimulateQuery) { q.MTU = 10 }, "the MTU is 10, choose 68 to 65535"},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := query(goodPath)
			c.edit(q)
			if _, err := Run(t.Context(), q); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupted"))
	if _, err := Run(ctx, query(goodPath)); err == nil {
		t.Error("it goes on after its context ended")
	}
}
