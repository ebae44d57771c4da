package fastpath

import (
	"testing"
	"time"
)

// clockwork runs a Pace on a simulated clock: a step without packets takes 200 ns, and each packet
// takes 1 us.
type clockwork struct {
	p   *Pace
	now uint64
}

func (k *clockwork) step(moved int) Rest {
	from := k.now
	k.now += max(200, 1000*uint64(moved))
	return k.p.After(moved, from, k.now)
}

// TestSpin: a worker polls for at most Spin before it sleeps, and with SpinAsWorked for at most the
// time that it worked.
func TestSpin(t *testing.T) {
	for _, c := range []struct {
		name     string
		asWorked bool
		packets  int
		want     uint64 // ns
	}{
		{"always", false, 1, 20_000},
		{"nothing came since the last sleep", true, 0, 200},
		{"two packets", true, 2, 2_000},
		{"busy", true, 100, 20_000},
	} {
		k := &clockwork{p: NewPace(&Waiting{Spin: 20 * time.Microsecond, SpinAsWorked: c.asWorked}, 0)}
		if c.packets > 0 && k.step(c.packets) != GoOn {
			t.Errorf("%s: rests after a step with packets", c.name)
		}
		from := k.now
		for k.step(0) == GoOn {
		}
		if got := k.now - from; got != c.want {
			t.Errorf("%s: polls for %d ns, want %d", c.name, got, c.want)
		}
	}
}

// TestSpinningTakesNoLongerThanWork: polls without packets take no longer in total than the
// packets, even if the next packet always arrives before the worker would sleep.
func TestSpinningTakesNoLongerThanWork(t *testing.T) {
	for _, every := range []uint64{2_500, 5_000, 12_500, 19_000, 100_000} {
		k := &clockwork{p: NewPace(&Waiting{Spin: 20 * time.Microsecond, SpinAsWorked: true}, 0)}
		k.step(100) // from now on polling can find each next packet
		worked, polled := k.now, uint64(0)
		for next := k.now + every; k.now < 50_000_000; {
			from, moved := k.now, 0
			for ; next <= k.now; next += every {
				moved++
			}
			rest := k.step(moved)
			switch {
			case moved > 0:
				worked += k.now - from
			case rest == GoOn:
				polled += k.now - from
			default:
				k.now = max(k.now, next)
			}
		}
		if polled > worked {
			t.Errorf("a packet every %d ns: polled for %d ns, worked for %d", every, polled, worked)
		}
	}
}

// TestBreak: a worker that polls all the time leaves its CPU every half millisecond, when no
// packets are waiting, if Break is set.
func TestBreak(t *testing.T) {
	for _, c := range []struct {
		name   string
		length time.Duration
		moved  int // in nine of ten steps
		want   int // breaks in 10 ms
	}{
		{"no packets", 30 * time.Microsecond, 0, 19}, {"packets", 30 * time.Microsecond, 1, 19},
		{"without Break", 0, 0, 0},
	} {
		k := &clockwork{p: NewPace(&Waiting{Spin: time.Second, Break: c.length}, 0)}
		breaks := 0
		for i := 0; k.now < 10_000_000; i++ {
			moved := c.moved
			if i%10 == 0 {
				moved = 0
			}
			switch k.step(moved) {
			case Break:
				breaks++
				k.now += uint64(c.length)
				k.p.Rested(k.now)
			case GoOn:
			default:
				t.Fatalf("%s: it rests", c.name)
			}
		}
		if breaks < c.want-1 || breaks > c.want {
			t.Errorf("%s: %d breaks, want %d", c.name, breaks, c.want)
		}
	}
}

// TestNap: a worker naps if four packets arrive during a nap, sleeps if packets arrive more slowly,
// and sleeps again soon after they stop.
func TestNap(t *testing.T) {
	for _, c := range []struct {
		name   string
		every  uint64 // ns between packets
		nap    time.Duration
		wanted Rest
	}{
		{"200,000 a second", 5_000, 50 * time.Microsecond, Nap},
		{"90,000 a second", 11_000, 50 * time.Microsecond, Nap},
		{"70,000 a second", 14_000, 50 * time.Microsecond, Sleep},
		{"1,000 a second", 1_000_000, 50 * time.Microsecond, Sleep},
		{"200,000 a second, coalescing off", 5_000, 0, Sleep},
	} {
		k := &clockwork{p: NewPace(&Waiting{Coalesce: c.nap}, 0)}
		next := c.every // when the next packet comes
		var rests [Sleep + 1]int
		for k.now < 50_000_000 {
			moved := 0
			for ; next <= k.now; next += c.every {
				moved++
			}
			rest := k.step(moved)
			switch rest {
			case Nap:
				k.now += uint64(c.nap)
			case Sleep:
				k.now = max(k.now, next)
			}
			rests[rest]++
		}
		if other := Nap + Sleep - c.wanted; rests[c.wanted] < 20 || rests[other] > rests[c.wanted]/20 {
			t.Errorf("%s: %d naps, %d sleeps", c.name, rests[Nap], rests[Sleep])
		}
		for range 20 { // without further packets
			if k.step(0) == Nap {
				k.now += uint64(c.nap)
			}
		}
		if rest := k.step(0); rest != Sleep {
			t.Errorf("%s: does %v twenty steps after the last packet, want a sleep", c.name, rest)
		}
	}
}
