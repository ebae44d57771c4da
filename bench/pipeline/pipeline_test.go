package pipeline

import (
	"context"
	"io"
	"math/bits"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// TestHashes: the values that the hashes' authors publish.
func TestHashes(t *testing.T) {
	// Microsoft, "Verifying the RSS hash calculation".
	for _, c := range []struct {
		t    tuple4
		want uint32
	}{
		{tuple4{66<<24 | 9<<16 | 149<<8 | 187, 161<<24 | 142<<16 | 100<<8 | 80, 2794, 1766}, 0x51ccc178},
		{tuple4{199<<24 | 92<<16 | 111<<8 | 2, 65<<24 | 69<<16 | 140<<8 | 83, 14230, 4739}, 0xc626b0ea},
	} {
		if got := toeplitzHash(c.t); got != c.want {
			t.Errorf("Toeplitz of %+v is %#x, want %#x", c.t, got, c.want)
		}
	}
	// lookup3.c, driver5: 30 bytes, two rounds of the mix and then the final round.
	if got := jenkinsOf("Four score and seven years ago"); got != 0x17770551 {
		t.Errorf("lookup3 is %#x, want 0x17770551", got)
	}
}

// jenkinsOf is hashlittle of lookup3.c with initial value zero, for a string whose length is not a
// multiple of 12.
func jenkinsOf(s string) uint32 {
	a := 0xdeadbeef + uint32(len(s))
	b, c := a, a
	word := func(at int) (v uint32) {
		for i := range 4 {
			if at+i < len(s) {
				v |= uint32(s[at+i]) << (8 * i)
			}
		}
		return v
	}
	at := 0
	for ; len(s)-at > 12; at += 12 {
		a, b, c = a+word(at), b+word(at+4), c+word(at+8)
		for _, r := range [2][3]int{{4, 6, 8}, {16, 19, 4}} {
			a = (a - c) ^ bits.RotateLeft32(c, r[0])
			c += b
			b = (b - a) ^ bits.RotateLeft32(a, r[1])
			a += c
			c = (c - b) ^ bits.RotateLeft32(b, r[2])
			b += a
		}
	}
	return jenkinsFinal(a+word(at), b+word(at+4), c+word(at+8))
}

// TestSetsCollide: all tuples of a set collide under the set's own hash, and under no other.
func TestSetsCollide(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	like := tuple4{dst: vipBase4, dstPort: frontendPort}
	const n = 5000
	for _, c := range []struct {
		name string
		hash func(tuple4) uint32
		mask uint32
		set  []tuple4
	}{
		{"crc32c", crcHash, 1<<32 - 1, linearSet(crcHash, n, like, rnd)},
		{"toeplitz", toeplitzHash, 1<<32 - 1, linearSet(toeplitzHash, n, like, rnd)},
		{"jhash", jenkinsHash, 1<<8 - 1, searchedSet(jenkinsHash, 8, n, like, rnd)},
	} {
		distinct, values, others := map[tuple4]bool{}, map[uint32]bool{}, map[uint32]bool{}
		for _, x := range c.set {
			if !x.possible() || x.dst != like.dst || x.dstPort != like.dstPort {
				t.Fatalf("%s: %+v is no client's", c.name, x)
			}
			distinct[x] = true
			values[c.hash(x)&c.mask] = true
			others[c.hash(x)^crcHash(x)^toeplitzHash(x)^jenkinsHash(x)] = true
		}
		if len(distinct) != n || len(values) != 1 {
			t.Errorf("%s: %d tuples of %d, with %d values", c.name, len(distinct), n, len(values))
		}
		if len(others) < 100 {
			t.Errorf("%s: the tuples have only %d values under other hashes: they are too much alike", c.name,
				len(others))
		}
	}
}

// TestSetsArePlain: the two sides of the experiment differ only in the hashes of their tuples, and
// not in the worker's treatment of their packets.
func TestSetsArePlain(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	like := tuple4{dst: vipBase4, dstPort: frontendPort}
	const n, draws = 5000, 20 // a set of linear tuples keeps some bits of its base
	for range draws {
		for name, set := range map[string][]tuple4{
			"random": randomTuples(n, like, rnd),
			"linear": linearSet(crcHash, n, like, rnd), "searched": searchedSet(jenkinsHash, 4, n, like, rnd),
		} {
			for _, x := range set {
				var b [128]byte
				size := (&world{}).frame(&b, &flow{client: x.src, clientPort: x.srcPort, proto: header.ProtoUDP},
					fromClient, 0)
				if end, special := header.Plain4((*[header.Window4Bytes]byte)(b[:]), uint32(size)); end == 0 ||
					special {
					t.Fatalf("%s: the packets of %+v are not plain", name, x)
				}
			}
		}
	}
}

// TestRun runs scenarios briefly and checks the points of both systems, ratios, and the file.
func TestRun(t *testing.T) {
	built(t)
	c := Defaults()
	c.Out, c.Repeat, c.Chunks, c.Flows, c.IPv6 = io.Discard, 2, 3, []int{1000}, false
	c.Scenarios = []string{"steady", "size"}
	c.JSON = filepath.Join(t.TempDir(), "run.json")
	if err := Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	run, err := results.Load(c.JSON)
	if err != nil {
		t.Fatal(err)
	}
	systems := map[string]int{}
	for _, p := range run.Points {
		systems[p.System+" "+p.Metric]++
		if p.Params["scenario"] == "steady" && len(p.Samples) != c.Repeat || p.Median() <= 0 {
			t.Errorf("%s has samples %v", conditions(p.Params), p.Samples)
		}
	}
	n := len((&runner{}).loads())
	for what, want := range map[string]int{
		"sluice ns_per_packet": n, "c-reference ns_per_packet": n, "sluice ratio": n, "c-one-by-one ns_per_packet": 1,
		"sluice bytes_per_flow": 2,
	} {
		if systems[what] != want {
			t.Errorf("%d points of %s, want %d", systems[what], what, want)
		}
	}
	if !strings.Contains(run.Machine.Notes, built(t).compiler) {
		t.Errorf("notes %q do not name the compiler", run.Machine.Notes)
	}
}

// TestRunRefuses: impossible measurements are rejected before anything begins.
func TestRunRefuses(t *testing.T) {
	c := Defaults()
	c.Out, c.Scenarios = io.Discard, []string{"steadily"}
	if err := Run(context.Background(), c); err == nil || !strings.Contains(err.Error(), "new-flows") {
		t.Errorf("an unknown scenario: %v", err)
	}
	for what, set := range map[string]func(*Config){
		"no repetition": func(c *Config) { c.Repeat = 0 },
		"no flows":      func(c *Config) { c.Flows = []int{1000, 0} },
		"no family":     func(c *Config) { c.IPv4, c.IPv6 = false, false },
	} {
		c = Defaults()
		c.Out, c.Reference, c.Scenarios = io.Discard, false, []string{"steady"}
		set(&c)
		if err := Run(context.Background(), c); err == nil {
			t.Errorf("%s was not refused", what)
		}
	}
}

// TestChunkReportsLoss: a chunk with unsent packets is an error, not a fast figure.
func TestChunkReportsLoss(t *testing.T) {
	w, g := openWorld(t, worldConfig{services: 1, backends: 2, capacity: 100}, 10)
	stranger := w.flows[0]
	stranger.snatPort++
	var b [128]byte
	if !g.nic.Inject(b[:w.frame(&b, &stranger, fromBackend, 0)]) {
		t.Fatal("not injected")
	}
	if _, err := g.chunk(1); err == nil {
		t.Error("a packet that was not sent counts as one that was")
	}
}

// TestNewFlowsIncludeEndingOldOnes: the measured loop ends as many flows as it opens, and time that
// only a few chunks need is included.
func TestNewFlowsIncludeEndingOldOnes(t *testing.T) {
	const live, warm, n = 40 * chunkFrames, 4, 4
	g, err := shortLived(false, live)
	if err != nil {
		t.Fatal(err)
	}
	defer g.w.close()
	s := strangers{proto: header.ProtoUDP}
	if _, err := g.lives(warm, live, &s); err != nil {
		t.Fatal(err)
	}
	before := g.w.table.Counts()
	began := time.Now()
	ns, err := g.lives(n, live, &s)
	if err != nil {
		t.Fatal(err)
	}
	after := g.w.table.Counts()
	opened, ended := after.Created[0]-before.Created[0],
		after.Shed[flowtable.ShedExpired]-before.Shed[flowtable.ShedExpired]
	// The table has room for 2*live flows, and a busy machine sweeps late.
	if opened != n*live || ended < (n-1)*live*9/10 || ended > (n+1)*live*11/10 {
		t.Errorf("%d flows came and %d went, want %d, but for %d that wait for the sweep", opened, ended, n*live, live)
	}
	if most := float64(time.Since(began)) / (n * live); ns <= 0 || ns > most {
		t.Errorf("%.0f ns a flow: want some, and at most %.0f", ns, most)
	}
}

// TestRatioWithoutTarget: a ratio without a target is neither met nor missed.
func TestRatioWithoutTarget(t *testing.T) {
	var p points
	p.ratio(map[string]string{"scenario": "a"}, 3, "lower", 0)
	p.ratio(map[string]string{"scenario": "b"}, 3, "lower", 2)
	if p.list[0].Target != nil || p.list[1].Target == nil || *p.list[1].Target != 2 {
		t.Errorf("targets %v, %v", p.list[0].Target, p.list[1].Target)
	}
}
