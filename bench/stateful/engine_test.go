package stateful

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"hash"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/memlink"
)

// smallProfile is a profile with small pools.
func smallProfile(t testing.TB, templates ...Template) *Profile {
	t.Helper()
	p := &Profile{Name: "test", Duration: time.Hour, CPS: 1000, Concurrency: 200, Templates: templates}
	var err error
	if p.Clients, err = ParsePool("10.81.0.1-10.81.0.4", "20000-29999"); err != nil {
		t.Fatal(err)
	}
	if p.Servers, err = ParsePool("10.82.0.1-10.82.0.4", ""); err != nil {
		t.Fatal(err)
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	return p
}

func page() Template {
	return Template{Name: "page", Protocol: ProtocolTCP, Port: 80, Share: 1, Close: Server, Steps: []Step{
		{From: Client, Bytes: []byte("GET / HTTP/1.1\r\n\r\n"), Size: 18}, {From: Server, Size: 5000},
	}}
}

func large() Template {
	return Template{Name: "large", Protocol: ProtocolTCP, Port: 81, Share: 1, Steps: []Step{
		{From: Client, Size: 70_000}, {From: Server, Size: 100_000, After: 3 * time.Millisecond},
		{From: Server, Size: 16}, {From: Client, Size: 1}, {From: Server, Size: 17},
	}}
}

func query() Template {
	return Template{Name: "query", Protocol: ProtocolUDP, Port: 53, Share: 1, Retries: 8,
		Timeout: 300 * time.Millisecond, Steps: []Step{
			{From: Client, Bytes: []byte("who?"), Size: 4}, {From: Server, Size: 100},
		}}
}

func burst() Template {
	return Template{Name: "burst", Protocol: ProtocolUDP, Port: 443, Share: 1, Retries: 8,
		Timeout: 300 * time.Millisecond, Steps: []Step{
			{From: Client, Size: 1200, Count: 2}, {From: Server, Size: 1200, Count: 16},
			{From: Client, Size: 40, Count: 3},
			{From: Client, Size: 300, After: 5 * time.Millisecond}, {From: Server, Size: 60},
		}}
}

// play runs a pair in simulated time until n connections were opened and all have ended, or until
// the limit.
func play(t testing.TB, r *pair, n uint64, limit time.Duration) {
	t.Helper()
	const tick = 100 * time.Microsecond
	now := uint64(1_000_000_000)
	for at := time.Duration(0); at < limit; at += tick {
		r.step(now + uint64(at))
		c := r.client.stats.Total()
		if c.Opened >= n {
			r.client.Stop()
		}
		if r.client.start.stopped && c.Active == 0 && r.server.stats.Total().Active == 0 {
			break
		}
	}
	for _, e := range []*Engine{r.client, r.server} {
		if e.Frames() != pairFrames {
			t.Errorf("%s: %d frames of %d", e.role, e.Frames(), pairFrames)
		}
	}
}

// clean checks that both engines completed all n connections.
func clean(t testing.TB, r *pair, n uint64) {
	t.Helper()
	for _, e := range []*Engine{r.client, r.server} {
		c := e.stats.Total()
		if c.Opened < n || c.Completed != c.Opened || c.Failures() != 0 || c.Active != 0 || c.Violations+c.Retupled+
			c.Moved != 0 {
			t.Errorf("%s: %+v, packets %+v", e.role, c, e.stats.Packets)
		}
	}
}

func TestRecordIsTwoLines(t *testing.T) {
	if n := reflect.TypeFor[conn]().Size(); n != 128 {
		t.Errorf("a record has %d bytes, want 128: two cache lines", n)
	}
}

// TestExchanges plays every kind of template on a perfect wire.
func TestExchanges(t *testing.T) {
	for _, template := range []Template{page(), large(), query(), burst()} {
		for _, six := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s six=%v", template.Name, six), func(t *testing.T) {
				p := smallProfile(t, template)
				if six {
					q := p.To6()
					p = &q
				}
				r, err := newPair(p)
				if err != nil {
					t.Fatal(err)
				}
				play(t, r, 300, 60*time.Second)
				clean(t, r, 300)
				c, s := r.client.stats.Total(), r.server.stats.Total()
				if c.BytesIn != s.BytesOut || c.BytesOut != s.BytesIn || c.Retransmits+s.Retransmits != 0 {
					t.Errorf("client %+v\nserver %+v", c, s)
				}
				if template.Protocol == ProtocolTCP && r.client.stats.Connect[0].TotalCount() != int64(c.Opened) {
					t.Errorf("%d connect times of %d connections", r.client.stats.Connect[0].TotalCount(), c.Opened)
				}
			})
		}
	}
}

// TestFaults plays on a wire that loses, repeats and reorders: every byte arrives once, in order. A
// seed that found a defect stays here under the defect's name.
func TestFaults(t *testing.T) {
	for _, tc := range []struct {
		name string
		seed uint64
	}{
		// The peer's FIN, which acknowledged ours, was lost twice.
		{"wait for the peer's FIN", 1795471280345792856},
		{"random", uint64(time.Now().UnixNano())},
	} {
		t.Run(tc.name, func(t *testing.T) { playFaults(t, tc.seed) })
	}
}

func playFaults(t *testing.T, seed uint64) {
	t.Logf("seed %d", seed)
	p := smallProfile(t, page(), large(), query(), burst())
	p.TCP.Retries, p.TCP.FirstRTO, p.TCP.Window = 12, 20*time.Millisecond, 8192
	p.TCP.MinRTO = 10 * time.Millisecond
	r, err := newPair(p)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(seed, 0))
	type late struct {
		to    *memlink.Link
		frame []byte
	}
	var held []late
	r.fault = func(to *memlink.Link, frame []byte) {
		switch x := random.IntN(100); {
		case x < 3: // lost
			return
		case x < 6: // duplicated
			to.Inject(frame)
		case x < 10: // delayed
			held = append(held, late{to, bytes.Clone(frame)})
			return
		}
		to.Inject(frame)
		if len(held) > 0 && random.IntN(4) == 0 {
			k := random.IntN(len(held))
			held[k].to.Inject(held[k].frame)
			held = append(held[:k], held[k+1:]...)
		}
	}
	client, server := arrivals(r.client, p), arrivals(r.server, p)
	play(t, r, 400, 600*time.Second)
	c, s := r.client.stats.Total(), r.server.stats.Total()
	if c.Completed != c.Opened || c.Opened < 400 || c.Failures() != 0 || c.Violations+c.Retupled != 0 {
		t.Errorf("client %+v", c)
	}
	if c.Retransmits == 0 || s.Retransmits == 0 || r.client.stats.Packets.OutOfOrder == 0 {
		t.Errorf("no retransmissions on such a wire: client %+v\nserver %+v", c, s)
	}
	for _, a := range []*arrived{client, server} {
		if a.right == 0 || a.right != a.completed() || a.wrong != 0 {
			t.Errorf("%s: bytes of %d TCP connections are the template's, of %d are not, %d were completed", a.e.role,
				a.right, a.wrong, a.completed())
		}
	}
	t.Logf("client %+v\nserver %+v", c, s)
}

// arrived hashes the data that arrives on each TCP connection of an engine, and compares it with
// the template when it is complete.
type arrived struct {
	e            *Engine
	p            *Profile
	sums         map[uint32]hash.Hash
	lengths      map[uint32]int
	right, wrong uint64
}

func arrivals(e *Engine, p *Profile) *arrived {
	a := &arrived{e: e, p: p, sums: map[uint32]hash.Hash{}, lengths: map[uint32]int{}}
	e.observe = func(i uint32, payload []byte) {
		c := &e.conns[i]
		if c.protocol != ProtocolTCP {
			return
		}
		if a.sums[i] == nil {
			a.sums[i] = sha256.New()
		}
		a.sums[i].Write(payload)
		a.lengths[i] += len(payload)
		want, n := a.want(c)
		if a.lengths[i] < n {
			return
		}
		if a.lengths[i] == n && bytes.Equal(a.sums[i].Sum(nil), want) {
			a.right++
		} else {
			a.wrong++
		}
		delete(a.sums, i)
		delete(a.lengths, i)
	}
	return a
}

// want is the hash of all data that the peer sends on a connection.
func (a *arrived) want(c *conn) ([]byte, int) {
	t := &a.p.Templates[c.template]
	tag := Tag{}
	if a.e.role == Client {
		tag = Tag{Server: uint32(c.peer[15]), Peer: peerHash(wireAddress(a.p.Clients.At(int(c.local))), c.localPort)}
	}
	sum, n := sha256.New(), 0
	for k := range t.Steps {
		if t.Steps[k].From != a.e.role {
			b := t.message(k, tag)
			sum.Write(b)
			n += len(b)
		}
	}
	return sum.Sum(nil), n
}

func (a *arrived) completed() (n uint64) {
	for i := range a.p.Templates {
		if a.p.Templates[i].Protocol == ProtocolTCP {
			n += a.e.stats.Templates[i].Completed
		}
	}
	return n
}

// message is the content of a step for a peer that is no engine, with its tag if it has one.
func (t *Template) message(number int, tag Tag) []byte {
	s := &t.Steps[number]
	b := make([]byte, s.Size)
	if s.Bytes != nil {
		copy(b, s.Bytes)
	} else {
		for at := 0; at < s.Size; at += patternBytes {
			copy(b[at:], pattern[:patternBytes])
		}
	}
	if s.From == Server || s.Bytes == nil && t.Protocol == ProtocolUDP {
		tag.Step = uint16(number)
		tag.Put(b)
	}
	return b
}
