//go:build root

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// TestTakeOverOtherTable: a next process whose flow table has another size names that and waits,
// and moves the flows when the running one has ended; and back again.
func TestTakeOverOtherTable(t *testing.T) {
	t.Parallel()
	const open = 50
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}, small: true, options: handsOver})
	flows := l.established(open, 5*time.Minute)
	small := l.gate.Configuration()
	large := strings.Replace(small, "ipv4: 65536", "ipv4: 131072", 1)
	for i, c := range []struct{ text, running, next string }{{large, "65536", "131072"}, {small, "131072", "65536"}} {
		if err := l.gate.WriteConfiguration(c.text); err != nil {
			t.Fatal(err)
		}
		why := l.notHandedOver(i + 1)
		if !strings.Contains(why, "flow table") || !strings.Contains(why, c.running+" IPv4") ||
			!strings.Contains(why, c.next+" IPv4") {
			t.Errorf("it says %q", why)
		}
		l.answeredAgain(flows)
	}
	l.wantUnbroken(flows, open, "tables of other sizes")
	l.next() // the same again
	l.handOverNoMore()
}

// notHandedOver starts a next process that is refused, the times-th one of the test, has it follow
// the end of the running one, and returns the reason.
func (l *lab) notHandedOver(times int) (why string) {
	l.t.Helper()
	if err := l.gate.LaunchNext(); err != nil {
		l.t.Fatal(err)
	}
	l.logged("the running process does not hand over", times)
	if err := l.gate.Stop(); err != nil {
		l.t.Fatalf("%v\n%s", err, l.gate.Log())
	}
	v, err := l.gate.Applied(l.ctx)
	if err != nil {
		l.t.Fatalf("%v\n%s", err, l.gate.Log())
	}
	if v.TakeOver == nil || len(v.TakeOver.Refused) != 1 {
		l.t.Fatalf("%+v", v.TakeOver)
	}
	l.t.Log(v.TakeOver.Refused[0])
	return v.TakeOver.Refused[0]
}

// laterVersion is a program whose flow table has another layout, in which two states have each
// other's numbers, and which knows the version before.
func laterVersion(t *testing.T) string {
	t.Helper()
	path, err := launch.BuildChanged(t.TempDir(), "sluice-later",
		launch.Change{File: "flowtable/versions.go", From: "const headVersion = 3\n", To: "const headVersion = 4\n"},
		launch.Change{File: "flowtable/versions.go", From: "\tcase headVersion:\n", To: `	case 3:
		return func(m conn.Meta) conn.Meta {
			switch m.State() {
			case 3:
				return m.WithState(Unconfirmed)
			case 4:
				return m.WithState(Established)
			}
			return m
		}
	case headVersion:
`},
		launch.Change{File: "flowtable/conn/state.go", From: "\tUnconfirmed           // SCTP",
			To: "\tEstablished           // SCTP"},
		launch.Change{File: "flowtable/conn/state.go", From: "\tEstablished           // TCP: handshake complete",
			To: "\tUnconfirmed           // TCP: handshake complete"},
		launch.Change{File: "flowtable/conn/state.go", From: `"UNCONFIRMED", "ESTABLISHED"`,
			To: `"ESTABLISHED", "UNCONFIRMED"`})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestTakeOverOtherLayout: a next process of a version whose flow table has another layout names
// that and waits, and moves the flows when the running one has ended, as it knows the layout
// before. Back again flows cannot be kept, as that program does not know the later layout: that is
// said by name, and connections that are made then are served.
func TestTakeOverOtherLayout(t *testing.T) {
	if !full() {
		t.Skip("builds another program: SLUICE_E2E=full")
	}
	const open = 50
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}, small: true, options: handsOver})
	flows := l.established(open, 5*time.Minute)
	later := laterVersion(t)
	follow := func(round int, binary, running, next string) {
		t.Helper()
		l.gate.Use(binary)
		why := l.notHandedOver(round)
		if !strings.Contains(why, "flow table: the running process has version "+running+",") ||
			!strings.Contains(why, "the next one version "+next+",") {
			t.Errorf("it says %q", why)
		}
	}
	follow(1, later, "3", "4")
	l.logged("flow table has another size or version, flows moved", 1)
	l.wantUnbroken(flows, open, "a later layout")
	l.next() // the same again
	flows = l.established(open, 5*time.Minute)
	follow(2, daemonBinary, "4", "3")
	const lost = "version 4 of the table, this program has 3"
	l.logged("the flow table in stateDir cannot be read ("+lost+")", 1)
	flows.Stop()
	l.wantServed("after flows that cannot be kept")
	flows = l.established(open, 5*time.Minute)
	l.next()
	l.wantUnbroken(flows, open, "back again")
	l.handOverNoMore()
}

// held is what the running process and the machine hold.
type held struct {
	anonymous, locked uint64 // bytes: RssAnon, and pages that are pinned or locked on the whole machine
	descriptors       int
	threads           int
	pins, objects     int // BPF: pins of the gateway, programs and maps of the machine
	files             int // in stateDir
}

func (l *lab) held() (h held) {
	l.t.Helper()
	process := fmt.Sprint("/proc/", l.gate.PID())
	count := func(dir string) int {
		list, err := os.ReadDir(dir)
		if err != nil {
			l.t.Fatal(err)
		}
		return len(list)
	}
	h.descriptors, h.threads, h.files = count(process+"/fd"), count(process+"/task"), count(l.gate.StateDir())
	err := filepath.WalkDir(l.gate.BPFFS(), func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			h.pins++
		}
		return err
	})
	h.objects = len(bpfObjects(l.t))
	var e error
	h.anonymous, e = memoryField(process+"/status", "RssAnon")
	err = errors.Join(err, e)
	for _, field := range []string{"Mlocked", "Shmem"} { // packet memory is shared memory without a name
		n, e := memoryField("/proc/meminfo", field)
		h.locked, err = h.locked+n, errors.Join(err, e)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return h
}

// memoryField reads a line such as "RssAnon:   1234 kB", in bytes.
func memoryField(file, name string) (n uint64, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			_, err = fmt.Sscanf(rest, "%d kB", &n)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, name)
}

// TestTakeOverManyTimes: a hundred processes take over, one from the other, under connections: none
// leaves anything of itself.
func TestTakeOverManyTimes(t *testing.T) {
	if !full() {
		t.Skip("a hundred hand-overs: SLUICE_E2E=full")
	}
	const open, settled, rounds = 100, 10, 100
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}, small: true, options: handsOver,
		lasts: 30 * time.Minute})
	flows := l.established(open, 30*time.Minute)
	var first, last held
	for round := range rounds {
		l.next()
		l.eventually(10*time.Second, "the process before has ended, and the servers are open", func() bool {
			v, err := l.gate.Client.Status(l.ctx, false)
			return err == nil && v.Ready
		})
		if last = l.held(); round == settled {
			first = last
		}
		if round%10 == 0 {
			t.Logf("after %d: %+v", round+1, last)
		}
	}
	t.Logf("after %d: %+v", rounds, last)
	const room = 16 << 20 // heaps differ by when they were collected last
	if last.anonymous > first.anonymous+room || last.locked > first.locked+room {
		t.Errorf("memory grows: %+v after %d, %+v after %d", first, settled+1, last, rounds)
	}
	if last.descriptors > first.descriptors+4 || last.threads > first.threads+8 || last.pins != first.pins ||
		last.objects != first.objects || last.files != first.files {
		t.Errorf("something is left: %+v after %d, %+v after %d", first, settled+1, last, rounds)
	}
	l.wantUnbroken(flows, open, fmt.Sprintf("%d hand-overs", rounds))
	l.handOverNoMore()
}

// TestTakeOverAtRate: hand-overs under numbered datagrams that are sent by the clock, both
// families, at the highest rate at which this machine, which has clients, gateway and backends on
// its processors, loses none without a hand-over.
func TestTakeOverAtRate(t *testing.T) {
	rates, rounds := []int{1000}, 2 // a second and family, each way
	if full() {
		rates, rounds = []int{2500, 5000, 10_000, 15_000, 20_000, 30_000, 40_000, 50_000}, 20
	}
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}, small: true, quick: full(),
		options: handsOver, lasts: 20 * time.Minute})
	client := l.Clients[0]
	run := func(rate int, meanwhile func()) (sent, lost, repeated uint64) {
		loads := []*topo.Numbered{l.numberAt(rate, client, client.Addr4(), at(vip4, dnsPort)),
			l.numberAt(rate, client, client.Addr6(), at(vip6, dnsPort))}
		meanwhile()
		for _, n := range loads {
			s, missing, again, err := n.Finish()
			if err != nil {
				t.Fatal(err)
			}
			sent, lost, repeated = sent+s, lost+missing, repeated+again
		}
		return sent, lost, repeated
	}
	best := rates[0]
	for _, rate := range rates[1:] {
		began := time.Now()
		sent, lost, _ := run(rate, func() { time.Sleep(5 * time.Second) })
		t.Logf("%d a second and family: %d sent in %v, %d lost without a hand-over", rate, sent,
			time.Since(began).Round(time.Millisecond), lost)
		if lost > 0 || float64(sent) < 0.98*float64(2*rate)*5 {
			break
		}
		best = rate
	}
	for {
		var gaps []time.Duration
		sent, lost, repeated := run(best, func() {
			for range rounds {
				l.next()
				v, err := l.gate.Client.Status(l.ctx, false)
				if err != nil {
					t.Fatal(err)
				}
				gaps = append(gaps, time.Duration(v.TakeOver.GapMicros)*time.Microsecond)
				time.Sleep(200 * time.Millisecond)
			}
		})
		slices.Sort(gaps)
		t.Logf("%d a second and family: %d hand-overs, packets waited %v (median), %v (most), %d datagrams each way, "+
			"%d lost, %d repeated", best, rounds, gaps[len(gaps)/2], gaps[len(gaps)-1], sent, lost, repeated)
		if repeated > 0 {
			t.Errorf("%d are repeated", repeated)
		}
		if lost == 0 {
			break
		}
		t.Logf("lost by %v", l.lostBy())
		if slower := slices.Index(rates, best) - 1; slower >= 0 {
			best = rates[slower] // a new process takes processors from clients and backends as well
			continue
		}
		t.Errorf("%d lost at %d a second", lost, best)
		break
	}
	l.handOverNoMore()
}

// lostBy counts packets that sockets had no room for, and that the gateway dropped, from the start.
func (l *lab) lostBy() map[string]uint64 {
	l.t.Helper()
	by := map[string]uint64{}
	for h, before := range l.damage {
		now, err := h.Counters()
		if err != nil {
			l.t.Fatal(err)
		}
		for name, n := range now.Since(before) {
			if n > 0 && (strings.Contains(name, "RcvbufErrors") || strings.Contains(name, "drop")) {
				by[h.Name+" "+name] = n
			}
		}
	}
	stats, err := l.gate.Client.Stats(l.ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, q := range stats.Queues {
		by["gateway's rings"] += q.RxRingFull + q.RxDropped
	}
	for _, w := range stats.Workers {
		for reason, n := range w.Drops {
			by["gateway: "+reason] += n
		}
	}
	return by
}
