package fastpath_test

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/test/bed/size"
)

// part is a fragment on its way from a client.
type part struct {
	at    time.Duration
	frame []byte
}

// natted makes datagrams of 300 clients behind one address, each with its own counter of 16-bit
// identifications.
type natted struct {
	rnd      *rand.Rand
	ids      [300]uint16
	lastUse  map[uint16]int // datagram by identification
	clients  []int          // of a datagram
	parts    []int          // of a datagram
	rivals   []bool         // another datagram uses the same identification at nearly the same time
	damaged  []bool         // a fragment was lost on the way
	reversed bool
	shuffled bool
	repeats  int // repeated, of 100 fragments
	lose     int // lost, of 1,000 fragments
}

// datagram returns the fragments of datagram n, which start at n ms. The whole payload of a
// datagram is its number.
func (c *natted) datagram(n int) (list []part) {
	const rivalry = 50 // ms
	client := c.rnd.IntN(len(c.ids))
	c.ids[client]++
	id := c.ids[client]
	last, used := c.lastUse[id]
	c.clients, c.damaged = append(c.clients, client), append(c.damaged, false)
	c.rivals = append(c.rivals, used && n-last < rivalry)
	if used && n-last < rivalry {
		c.rivals[last] = true
	}
	c.lastUse[id] = n
	payload := make([]byte, (1500+c.rnd.IntN(3000))&^7)
	for i := 0; i < len(payload); i += 8 {
		binary.BigEndian.PutUint64(payload[i:], uint64(n))
	}
	whole := headertest.UDP(join(client4, uint16(1000+client)), join(vip4, 53), string(payload)).Bytes()
	frames := headertest.Split(whole, 1480, uint32(id))
	c.parts = append(c.parts, len(frames))
	if c.reversed {
		slices.Reverse(frames)
	}
	if c.shuffled {
		c.rnd.Shuffle(len(frames), func(i, j int) { frames[i], frames[j] = frames[j], frames[i] })
	}
	for i, frame := range frames {
		at := time.Duration(n)*time.Millisecond + time.Duration(i)*20*time.Microsecond
		if c.rnd.IntN(1000) < c.lose {
			c.damaged[n] = true
		} else {
			list = append(list, part{at, frame})
		}
		if c.rnd.IntN(100) < c.repeats {
			list = append(list, part{at + time.Duration(c.rnd.IntN(2000))*time.Microsecond, frame})
		}
	}
	return list
}

// backendOracle checks the packets to the backend: each fragment must be of the datagram that the
// last first fragment with the same identification began.
type backendOracle struct {
	owner map[uint32]uint64   // datagram by identification
	ports map[uint16]int      // client by source port
	come  []map[uint16]bool   // offsets of a datagram's arrived fragments
	wrong map[uint64][]uint64 // datagrams whose fragments came with other datagrams' identifications
}

func (o *backendOracle) take(t *testing.T, c *natted, frame []byte) {
	var p header.Packet
	if r := header.Parse(frame, &p); r != reason.None {
		t.Fatalf("sent frame %x: %v", frame, r)
	}
	n := binary.BigEndian.Uint64(frame[p.End-8:])
	if p.Fragment == header.FirstFragment {
		o.owner[p.FragmentID] = n
		if client, used := o.ports[p.Tuple.SrcPort]; used && client != c.clients[n] {
			t.Errorf("datagram %d of client %d has the port of client %d", n, c.clients[n], client)
		}
		o.ports[p.Tuple.SrcPort] = c.clients[n]
	}
	if owner, known := o.owner[p.FragmentID]; !known || owner != n {
		o.wrong[n] = append(o.wrong[n], owner)
		return
	}
	for int(n) >= len(o.come) {
		o.come = append(o.come, map[uint16]bool{})
	}
	o.come[n][p.FragmentOffset] = true
}

// TestIdentificationsUsedAgain: 1,000 fragmented datagrams a second come from 300 clients behind
// one address, so one of 65 has the same identification as another client's datagram of less than a
// second before. All arrive completely, and no fragment leaves with another datagram's ports. If
// fragments are reordered, lost or repeated, this holds for all datagrams except those that share
// their identification with another datagram at nearly the same time, or with a damaged one: these
// are indistinguishable.
func TestIdentificationsUsedAgain(t *testing.T) {
	for _, tt := range []struct {
		name string
		c    natted
	}{
		{"in order", natted{}},
		{"some twice", natted{repeats: 10}},
		{"each twice", natted{repeats: 100}},
		{"last one first", natted{reversed: true}},
		{"shuffled, some twice", natted{shuffled: true, repeats: 10}},
		{"some lost", natted{lose: 5}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			datagrams := 20_000
			switch {
			case size.Race:
				datagrams = 1000
			case testing.Short():
				datagrams = 4000
			}
			l := newLab(t, labConfig{workers: 2, fragments: 8192})
			c := &tt.c
			c.rnd, c.lastUse = rand.New(rand.NewPCG(1, 2)), map[uint16]int{}
			for i := range c.ids {
				c.ids[i] = uint16(c.rnd.Uint32())
			}
			o := backendOracle{owner: map[uint32]uint64{}, ports: map[uint16]int{}, wrong: map[uint64][]uint64{}}
			var due []part
			begin := l.now
			for n := range datagrams + 10 {
				if n < datagrams {
					due = append(due, c.datagram(n)...)
					slices.SortStableFunc(due, func(a, b part) int { return int(a.at - b.at) })
				} else {
					due = append(due, part{time.Duration(n) * time.Millisecond, nil}) // only time passes
				}
				for len(due) > 0 && due[0].at < time.Duration(n+1)*time.Millisecond {
					if due[0].frame != nil {
						l.workers[c.rnd.IntN(2)].nic.Inject(due[0].frame)
					}
					l.now = max(l.now, begin+uint64(due[0].at))
					due = due[1:]
					l.step(0)
					for _, g := range l.workers {
						for frame, ok := g.nic.Take(nil); ok; frame, ok = g.nic.Take(nil) {
							o.take(t, c, frame)
						}
					}
				}
			}
			c.report(t, &o, l)
		})
	}
}

func (c *natted) report(t *testing.T, o *backendOracle, l *lab) {
	whole, lost, excused, wrong, damaged := 0, 0, 0, 0, 0
	for n := range c.clients {
		switch {
		case n < len(o.come) && len(o.come[n]) == c.parts[n]:
			whole++
		case c.damaged[n]:
			damaged++
		case c.rivals[n]:
			excused++
		default:
			lost++
		}
	}
	for n, owners := range o.wrong {
		for _, owner := range owners {
			if (!c.rivals[n] || !c.rivals[owner]) && !c.damaged[n] && !c.damaged[owner] {
				wrong++
			}
		}
	}
	t.Logf("of %d datagrams %d arrived whole, %d were damaged, %d could not be told apart, %d were lost; drops %v",
		len(c.clients), whole, damaged, excused, lost, l.drops())
	// Another datagram with a damaged one's identification within a second is lost as well.
	if lost > damaged*5/100 {
		t.Errorf("%d of %d datagrams did not arrive whole", lost, len(c.clients))
	}
	if wrong > 0 {
		t.Errorf("%d fragments have another datagram's ports", wrong)
	}
	if ordered := !c.reversed && !c.shuffled && c.lose+c.repeats == 0; ordered && excused+len(o.wrong) > 0 {
		t.Errorf("in order, %d datagrams are lost and fragments of %d have other ports", excused, len(o.wrong))
	}
}
