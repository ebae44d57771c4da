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
// has one, and whether that is tentative. It does not make the pin last longer.
func (t *Table) Get(now flowtable.Time, client header.Addr, service uint64) (pin Pin, tentative, ok bool) {
	key := keyOf(&client, service)
	s, tag := t.place(&key)
	var e entry
	if _, at := s.read(tag, &key, &e); at < 0 || !e.alive(ticksAt(now)) {
		return Pin{}, false, false
	}
	return e.pin(), e.tentative(), true
}

// Confirm is for a flow that stands: it pins the client to the flow's backend, in place of its
// former pin. The pin lasts for seconds, from 1 to MaxSeconds, and up to a tenth of a second more.
func (t *Table) Confirm(now flowtable.Time, client header.Addr, service uint64, pin Pin, seconds uint32) {
	o := settling{now: ticksAt(now), want: pin, tries: maxTries}
	t.settle(&o, &client, service, seconds)
}

// ConfirmUnproven is Confirm by a flow whose sender may have guessed that there was an answer
// (UDP): its pin takes no confirmed one's room. In a set that is full of these it is not stored.
func (t *Table) ConfirmUnproven(now flowtable.Time, client header.Addr, service uint64, pin Pin, seconds uint32) {
	o := settling{now: ticksAt(now), want: pin, yields: true, tries: maxTries}
	t.settle(&o, &client, service, seconds)
}

// Settle is for a new flow, of which it is not known whether its client is who it says. Its worker
// has read old (the zero Pin: none) and would take want. Settle pins the client to want,
// tentatively, and returns it; but if the client is pinned to something else than old meanwhile,
// it returns that. So workers that see a client's first flows at once agree. If the client has
// lost the pin meanwhile, want is taken. A tentative pin that is there lasts on; a confirmed one
// does not, and gives way only if it is old and not want: the caller must have found that it
// cannot be used. Where want cannot be stored, it is returned all the same: in a set that is full
// of confirmed pins it has no room.
func (t *Table) Settle(now flowtable.Time, client header.Addr, service uint64, want, old Pin, seconds uint32) Pin {
	o := settling{now: ticksAt(now), want: want, old: old, tentative: true, yields: true, tries: maxTries}
	return t.settle(&o, &client, service, seconds)
}

// settling is one Confirm or Settle under way.
type settling struct {
	now       ticks
	want, old Pin
	tentative bool // Settle
	yields    bool // tentative, or ConfirmUnproven: it evicts no confirmed pin
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
			if p := e.pin(); o.tentative && p != o.old {
				o.want = p
			}
		}
		mine.backend, mine.end = wordsOf(&o.want.Addr), packEnd(until, o.want.Port, o.tentative)
		switch {
		case at >= 0 && e.pins(mine.backend, o.want.Port):
			if !s.renew(c, at, &e, o.now, mine.end) {
				continue
			}
			if claimed >= 0 {
				s.release(claimed)
			}
			return o.want
		case claimed < 0:
			n, evicted, ok := s.claim(c, at, o.now, o.yields)
			switch {
			case ok:
				claimed = n
			case n < 0 && o.yields && s.ctl.Load() == c && c>>claimShift&slotMask == 0:
				return o.want // all are confirmed
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

// renew gives the pin of a valid slot another end (packEnd), and reports whether the slot still
// was that pin's when it had it. What is tentative changes no confirmed pin that is alive.
func (s *set) renew(c uint64, at int, e *entry, now ticks, end uint64) bool {
	kept := e.alive(now) && !e.tentative()
	next := end | e.end&endWritten
	if next == e.end || kept && next&endTentative != 0 {
		return true // several flows of a client in one tick write nothing
	}
	if !s.slots[at].end.CompareAndSwap(e.end, next) {
		return false
	}
	if kept || next&endTentative != 0 && e.alive(now) {
		return s.ctl.Load() == c
	}
	// Before, the pin might have been another's to take. Who has judged it so, and has not taken
	// it yet, finds another ctl.
	return s.ctl.CompareAndSwap(c, c+versionOne)
}
