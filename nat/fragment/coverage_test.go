package fragment

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
)

// parts cuts a datagram of total units into fragments of random sizes, or of size units each.
func parts(rnd *rand.Rand, total, size int, key uint64) (list []Datagram) {
	for at := 0; at < total; {
		n := size
		if n == 0 {
			n = 1 + rnd.IntN(200)
		}
		n = min(n, total-at)
		list = append(list, Datagram{Key: key, From: uint16(at), To: uint16(at + n), Last: at+n == total})
		at += n
	}
	return list
}

func take(table *Table, now uint64, d Datagram, port uint16) (s Status) {
	if d.From == 0 {
		_, s = table.Record(now, d, port, 53)
		return s
	}
	f, s := table.Later(now, d)
	if s == Known && f.Src != port {
		return Full // another datagram's ports
	}
	return s
}

// TestContextEnds: a datagram is complete exactly when its last byte has arrived, for any sizes and
// any order of the fragments after the first, also if some arrive twice. Then another port can use
// the identification at once.
func TestContextEnds(t *testing.T) {
	const most = 8192 // units of the largest datagram
	for _, tt := range []struct {
		name           string
		size           int
		swap, repeated int // of 100
	}{
		{"of one size, in order", 185, 0, 0},
		{"of one size, in order, each twice", 185, 0, 100},
		{"of one size, shuffled", 185, 100, 0},
		{"of random sizes, in order, some twice", 0, 0, 20},
		{"of random sizes, shuffled", 0, 100, 0},
		{"the smallest, shuffled", 1, 100, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(1, 2))
			table := newTable(t, 80)
			now := start
			for n := range 200 {
				list := parts(rnd, 2+rnd.IntN(most-1), tt.size, 42)
				if len(list) == 1 {
					continue
				}
				later := list[1:]
				if rnd.IntN(100) < tt.swap {
					rnd.Shuffle(len(later), func(i, j int) { later[i], later[j] = later[j], later[i] })
				}
				for i, d := range list {
					e := table.bucket(42).find(now, 42)
					if i > 0 && (e == nil || table.complete(e)) {
						t.Fatalf("datagram %d of %d fragments is complete after %d", n, len(list), i)
					}
					times := 1
					if rnd.IntN(100) < tt.repeated {
						times = 2
					}
					for range times {
						if s := take(table, now, d, uint16(1+n%2)); s != Known {
							t.Fatalf("datagram %d, fragment %d of %d: %v", n, i, len(list), s)
						}
					}
				}
				if e := table.bucket(42).find(now, 42); e == nil || !table.complete(e) {
					t.Fatalf("datagram %d is not complete after its %d fragments", n, len(list))
				}
			}
		})
	}
}

// TestOverlapOfLaterFragments: a fragment that overlaps known bytes only in part ends its datagram
// (RFC 5722); a fragment inside known bytes is a duplicate.
func TestOverlapOfLaterFragments(t *testing.T) {
	for _, tt := range []struct {
		name string
		then Datagram
		want Status
	}{
		{"the same again", Datagram{From: 20, To: 30}, Known},
		{"a part of it", Datagram{From: 22, To: 25}, Known},
		{"the last one again", Datagram{From: 40, To: 50, Last: true}, Known},
		{"the missing part", Datagram{From: 10, To: 20}, Known},
		{"in the first one", Datagram{From: 1, To: 10}, Overlap},
		{"at its end", Datagram{From: 9, To: 20}, Overlap},
		{"partly known", Datagram{From: 25, To: 35}, Overlap},
		{"around the known part", Datagram{From: 15, To: 35}, Overlap},
		{"beyond the end", Datagram{From: 50, To: 60}, Overlap},
		{"another end", Datagram{From: 30, To: 39, Last: true}, Overlap},
		{"more to come at the end", Datagram{From: 40, To: 50}, Overlap},
	} {
		t.Run(tt.name, func(t *testing.T) {
			table := newTable(t, 80)
			table.Record(start, Datagram{Key: 42, To: 10}, 7, 53)
			table.Later(start, Datagram{Key: 42, From: 20, To: 30})
			table.Later(start, Datagram{Key: 42, From: 40, To: 50, Last: true})
			tt.then.Key = 42
			if s := take(table, start, tt.then, 7); s != tt.want {
				t.Errorf("%v, want %v", s, tt.want)
			}
			if s := take(table, start, Datagram{Key: 42, From: 30, To: 40}, 7); s != tt.want {
				t.Errorf("the next fragment: %v, want %v", s, tt.want)
			}
		})
	}
}

// TestWorkersShareDatagrams: each worker gets some fragments of each datagram, and all datagrams
// have one identification. Each datagram is complete when all workers have processed it, so the
// next port never overlaps.
func TestWorkersShareDatagrams(t *testing.T) {
	table := newTable(t, 80)
	rnd := rand.New(rand.NewPCG(1, 2))
	const workers, datagrams = 4, 3000
	for n := range datagrams {
		port := uint16(1 + n%1000)
		list := parts(rnd, 3000+rnd.IntN(5000), 185, 42)
		rnd.Shuffle(len(list)-1, func(i, j int) { list[i+1], list[j+1] = list[j+1], list[i+1] })
		if s := take(table, start, list[0], port); s != Known {
			t.Fatalf("datagram %d: %v", n, s)
		}
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for i := 1 + w; i < len(list); i += workers {
					s := take(table, start, list[i], port)
					for ; s == Busy; s = take(table, start, list[i], port) {
						runtime.Gosched()
					}
					if s != Known {
						t.Errorf("datagram %d, fragment %d: %v", n, i, s)
					}
				}
			})
		}
		wg.Wait()
		if e := table.bucket(42).find(start, 42); e == nil || !table.complete(e) {
			t.Fatalf("datagram %d of %d fragments is not complete", n, len(list))
		}
	}
}

// TestOneIdentificationForAll: the datagrams of a sender that uses one identification for all of
// them, one after the other, are forwarded at any rate.
func TestOneIdentificationForAll(t *testing.T) {
	for _, gap := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond} {
		table := newTable(t, 80)
		rnd := rand.New(rand.NewPCG(1, 2))
		now := start
		for n := range 1000 {
			for i, d := range parts(rnd, 186+rnd.IntN(2000), 185, 42) {
				if s := take(table, now, d, 7); s != Known {
					t.Fatalf("gap %v, datagram %d, fragment %d: %v", gap, n, i, s)
				}
				now += uint64(gap)
			}
		}
	}
}
