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
	// Clients is the number of pins that the table is sized for, one of 103 bytes for each client
	// and service with affinity. In a full table, 1 pin in 150 is evicted early.
	Clients int
	// HashKey is for tests that must be repeatable; zero means a random key.
	HashKey flowtable.HashKey
}

// MaxClients is the maximum of Config.Clients.
const MaxClients = 1 << 26

// MaxSeconds is the maximum time that a pin may last without a new flow: the API's bound of
// timeoutSeconds (k8s.io/kubernetes pkg/apis/core, MaxClientIPServiceAffinitySeconds).
const MaxSeconds = 86400

// setPins is the average number of pins in a set of 10 slots when the table has the configured
// number of pins.
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

// Table holds pins. It is safe for concurrent use by any number of goroutines.
type Table struct {
	sets    []set
	secret  flowtable.HashKey
	clients int

	_       [64]byte
	evicted atomic.Uint64
	lost    atomic.Uint64
	_       [48]byte
}

// NewHeap returns an empty table in ordinary memory: for tests, and for gateways that need not
// recover their pins.
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

// Get returns the pin of a client's flows to a service (services.Service.Identity), if there is
// one, and whether it is tentative. It does not extend the pin.
func (t *Table) Get(now flowtable.Time, client header.Addr, service uint64) (pin Pin, tentative, ok bool) {
	key := keyOf(&client, service)
	s, tag := t.place(&key)
	var e entry
	if _, at := s.read(tag, &key, &e); at < 0 || !e.alive(ticksAt(now)) {
		return Pin{}, false, false
	}
	return e.pin(), e.tentative(), true
}

// Confirm must be called when a flow reaches an assured state (flowtable.State.Assured). It pins
// the client to the flow's backend, in place of its former pin. The pin lasts for seconds, from 1
// to MaxSeconds, and up to a tenth of a second more.
func (t *Table) Confirm(now flowtable.Time, client header.Addr, service uint64, pin Pin, seconds uint32) {
	o := settling{now: ticksAt(now), want: pin, tries: maxTries}
	t.settle(&o, &client, service, seconds)
}

// ConfirmUnproven is Confirm for a flow whose sender may have guessed that there was an answer
// (UDP): its pin evicts no confirmed pin. If the set is full of confirmed pins, it is not stored.
func (t *Table) ConfirmUnproven(now flowtable.Time, client header.Addr, service uint64, pin Pin, seconds uint32) {
	o := settling{now: ticksAt(now), want: pin, yields: true, tries: maxTries}
	t.settle(&o, &client, service, seconds)
}

// Settle must be called for a new flow, whose source may be forged. The worker has read the pin old
// (the zero Pin: none) and selected want. Settle pins the client tentatively to want and returns
// it. If the client now has another pin than old, it returns that pin instead: so workers that see
// a client's first flows at once agree. If the client has lost its pin meanwhile, Settle uses want.
// An existing tentative pin is extended. A confirmed pin is not extended, and is replaced only if
// it is old and not want: then the caller has found that its backend cannot be used. If want cannot
// be stored, because the set is full of confirmed pins, Settle still returns it.
func (t *Table) Settle(now flowtable.Time, client header.Addr, service uint64, want, old Pin, seconds uint32) Pin {
	o := settling{now: ticksAt(now), want: want, old: old, tentative: true, yields: true, tries: maxTries}
	return t.settle(&o, &client, service, seconds)
}

// settling is one Confirm or Settle in progress.
type settling struct {
	now       ticks
	want, old Pin
	tentative bool // Settle
	yields    bool // tentative, or ConfirmUnproven: it evicts no confirmed pin
	tries     int
}

// maxTries bounds the work of a writer. A try fails only if another writer's change of the same set
// succeeded, or if ten stopped writers have claimed slots of the set.
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
				return o.want // all pins are confirmed
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

// renew changes the end of the pin in a valid slot (packEnd), and reports whether the slot still
// held that pin at the change. A tentative end does not change a confirmed pin that is alive.
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
	// Until now another writer might have evicted the pin. A writer that has selected it as a
	// victim, but not claimed its slot yet, now finds another ctl and fails.
	return s.ctl.CompareAndSwap(c, c+versionOne)
}
