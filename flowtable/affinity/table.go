package affinity

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// Config sizes a table.
type Config struct {
	// Clients is how many pins there is room for, one for each client and service with affinity, of
	// 102 bytes. In a full table, 1 in 150 has been evicted before its time.
	Clients int
	// HashKey is for tests that must repeat; zero takes a random one.
	HashKey flowtable.HashKey
}

// MaxClients is the most that Config.Clients may be.
const MaxClients = 1 << 26

// MaxSeconds is the longest that a pin may last without a new flow: the API's bound of
// timeoutSeconds (k8s.io/kubernetes pkg/apis/core, MaxClientIPServiceAffinitySeconds).
const MaxSeconds = 86400

// setPins is the average number of pins in a set of 10 when there are as many as configured.
const setPins = 5

func (c *Config) sets() int { return (c.Clients + setPins - 1) / setPins }

func (c *Config) check() error {
	if c.Clients < 1 || c.Clients > MaxClients {
		return fmt.Errorf("affinity: room for %d clients: must be between 1 and %d", c.Clients, MaxClients)
	}
	return nil
}

// Pin is the backend that a client's new flows to a service go to.
type Pin struct {
	Addr header.Addr
	Port uint16 // host byte order
}

// ticks are deciseconds of boot time: 32 bits last 13 years.
type ticks uint32

const tick = 100 * time.Millisecond

func ticksAt(now flowtable.Time) ticks { return ticks(uint64(now) / uint64(tick)) }
func (t ticks) since(u ticks) int32    { return int32(t - u) }
func (t ticks) after(sec uint32) ticks { return t + ticks(sec)*ticks(time.Second/tick) }

func (e *entry) alive(now ticks) bool { return e.until().since(now) >= 0 }
func (e *entry) pin() Pin             { return Pin{Addr: addrOf(e.backend), Port: e.port()} }

func wordsOf(a *header.Addr) [2]uint64 {
	return [2]uint64{binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:])}
}

func addrOf(w [2]uint64) (a header.Addr) {
	binary.BigEndian.PutUint64(a[:8], w[0])
	binary.BigEndian.PutUint64(a[8:], w[1])
	return a
}

// Table holds pins. All of it may be used by any number of goroutines at once.
type Table struct {
	sets    []set
	secret  flowtable.HashKey
	clients int

	_       [64]byte
	evicted atomic.Uint64
	lost    atomic.Uint64
	_       [48]byte
}

// NewHeap returns an empty table in ordinary memory: for tests, and for a gateway that need not
// recover its pins.
func NewHeap(c Config) (*Table, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	t := &Table{sets: make([]set, c.sets()), secret: c.HashKey, clients: c.Clients}
	if t.secret == (flowtable.HashKey{}) {
		t.secret = flowtable.RandomHashKey()
	}
	return t, nil
}

// keyOf returns the key of a pin; place returns its set and tag.
func keyOf(client *header.Addr, service uint64) [3]uint64 {
	w := wordsOf(client)
	return [3]uint64{w[0], w[1], service}
}

func (t *Table) place(key *[3]uint64) (s *set, tag uint16) {
	hash := t.secret.Words(key[0], key[1], key[2])
	i, _ := bits.Mul64(hash, uint64(len(t.sets)))
	return &t.sets[i], uint16(hash)
}

// Get returns the pin of a client's flows to a service (services.Service.Identity), if it
// has one. It does not make the pin last longer.
func (t *Table) Get(now flowtable.Time, client header.Addr, service uint64) (Pin, bool) {
	key := keyOf(&client, service)
	s, tag := t.place(&key)
	var e entry
	if _, at := s.read(tag, &key, &e); at < 0 || !e.alive(ticksAt(now)) {
		return Pin{}, false
	}
	return e.pin(), true
}

// Set pins a client to a backend, in place of its former pin. The pin lasts for seconds, from 1
// to MaxSeconds, and up to a tenth of a second more.
func (t *Table) Set(now flowtable.Time, client header.Addr, service uint64, pin Pin, seconds uint32) {
	o := settling{now: ticksAt(now), want: pin, force: true, tries: maxTries}
	t.settle(&o, &client, service, seconds)
}

// Settle is called for a new flow whose worker has read the pin old (the zero Pin: none) and has
// chosen want. It pins the client to want and returns want. But if another worker has pinned the
// client to a third backend meanwhile, it renews that pin and returns it: so workers that see a
// client's first flows at once agree. If the client has lost its pin meanwhile, Settle pins it to
// want. It also returns want if the pin cannot be stored (Counts.Lost).
func (t *Table) Settle(now flowtable.Time, client header.Addr, service uint64, want, old Pin, seconds uint32) Pin {
	o := settling{now: ticksAt(now), want: want, old: old, tries: maxTries}
	return t.settle(&o, &client, service, seconds)
}

// settling is one Set or Settle under way.
type settling struct {
	now       ticks
	want, old Pin
	force     bool
	tries     int
}

// maxTries bounds the work of a writer. Each failed try means that another's change of
// the same set succeeded, or that ten writers at once are stopped within it.
const maxTries = 64

func (t *Table) settle(o *settling, client *header.Addr, service uint64, seconds uint32) Pin {
	var e entry
	mine := entry{key: keyOf(client, service)}
	s, tag := t.place(&mine.key)
	until := o.now.after(min(seconds, MaxSeconds))
	claimed := -1
	for range o.tries {
		c, at := s.read(tag, &mine.key, &e)
		if at >= 0 && e.alive(o.now) {
			if p := e.pin(); !o.force && p != o.old {
				o.want = p
			}
		}
		mine.backend, mine.end = wordsOf(&o.want.Addr), packEnd(until, o.want.Port)
		switch {
		case at >= 0 && e.pins(mine.backend, o.want.Port):
			if !s.prolong(c, at, e.end, until) {
				continue
			}
			if claimed >= 0 {
				s.release(claimed)
			}
			return o.want
		case claimed < 0:
			n, evicted, ok := s.claim(c, at, o.now)
			if ok {
				claimed = n
			}
			if ok && evicted {
				t.evicted.Add(1)
			}
		default:
			s.write(claimed, tag, &mine)
			if s.commit(c, claimed, at) {
				return o.want
			}
		}
	}
	if claimed >= 0 {
		s.release(claimed)
	}
	t.lost.Add(1)
	return o.want
}

// prolong gives the pin of a valid slot another end, and reports whether the slot still held that
// pin then.
func (s *set) prolong(c uint64, at int, end uint64, until ticks) bool {
	next := end&(1<<32-1) | uint64(until)<<32
	if next == end {
		return true // several flows of a client in one tick write nothing
	}
	return s.slots[at].end.CompareAndSwap(end, next) && s.ctl.Load() == c
}
