package handover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var testTimes = Times{Answer: 10 * time.Second, Lay: 10 * time.Second, Prepare: 10 * time.Second,
	Assume: 10 * time.Second}

// fake is both sides. calls has what was called, in order; at runs before a call.
type fake struct {
	facts []Fact
	calls []string
	at    func(call string) error
	got   string // the offer and the state, and what was read from the file
}

func (f *fake) call(name string) error {
	f.calls = append(f.calls, name)
	if f.at == nil {
		return nil
	}
	return f.at(name)
}

func (f *giver) Facts(*Hello) ([]Fact, error)   { return f.facts, f.call("facts") }
func (f *taker) Facts() ([]Fact, string, error) { return f.facts, "", f.call("facts") }
func (f *fake) Offer(context.Context) ([]byte, []int, error) {
	err := f.call("offer")
	list := slices.Repeat([]int{int(os.Stderr.Fd())}, 450) // more than one message has
	return []byte("what"), list, err
}
func (f *fake) Stop(context.Context) ([]byte, error) { return []byte("where"), f.call("stop") }
func (f *fake) Continue()                            { _ = f.call("continue") }
func (f *fake) Lay(context.Context) error            { return f.call("lay") }
func (f *fake) Prepare(_ context.Context, offer []byte, files []int) error {
	for _, fd := range files {
		unix.Close(fd)
	}
	f.got += fmt.Sprint(string(offer), " ", len(files), " ")
	return f.call("prepare")
}
func (f *fake) Assume(state []byte) error {
	f.got += string(state)
	return f.call("assume")
}

// giver and taker are the two sides of fake.
type (
	giver struct{ *fake }
	taker struct{ *fake }
)

// pair returns the two ends of a connection.
func pair(t *testing.T) (a, b *Conn) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		if ends[i], err = NewConn(c.(*net.UnixConn)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends[0], ends[1]
}

// outcome is what both sides say in the end.
type outcome struct {
	gave             bool
	giveErr, takeErr error
	from             string
}

// run runs both sides, and closes the connection of whichever has returned, as its death would.
func run(t *testing.T, g, k *fake, gt, kt Times) (o outcome) {
	a, b := pair(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.gave, o.giveErr = Give(t.Context(), a, &giver{g}, "v1", gt)
		a.Close()
	}()
	o.from, o.takeErr = Take(t.Context(), b, &taker{k}, "v2", kt)
	if o.takeErr != nil {
		b.Close()
	}
	<-done
	return o
}

func TestHandOver(t *testing.T) {
	facts := []Fact{{"frames", "2048 bytes"}, {"workers", "2"}}
	g, k := &fake{facts: facts}, &fake{facts: facts}
	o := run(t, g, k, testTimes, testTimes)
	if !o.gave || o.giveErr != nil || o.takeErr != nil || o.from != "v1" {
		t.Errorf("%+v", o)
	}
	if k.got != "what 450 where" {
		t.Errorf("got %q", k.got)
	}
	if want := []string{"facts", "offer", "stop"}; !slices.Equal(g.calls, want) {
		t.Errorf("giver: %v, want %v", g.calls, want)
	}
	if want := []string{"facts", "lay", "prepare", "assume"}; !slices.Equal(k.calls, want) {
		t.Errorf("taker: %v, want %v", k.calls, want)
	}
}

func TestRefusals(t *testing.T) {
	facts := []Fact{{"frames", "2048 bytes"}, {"workers", "2"}}
	for _, c := range []struct {
		name         string
		ours, theirs []Fact
		want         []string
	}{
		{"another size", facts, []Fact{{"frames", "4096 bytes"}, {"workers", "2"}},
			[]string{"frames: the running process has 2048 bytes, the next one 4096 bytes"}},
		{"several", facts, []Fact{{"workers", "1"}, {"moons", "3"}}, []string{
			"frames: the next process does not know it", "workers: the running process has 2, the next one 1",
			"moons: the running process does not know it"}},
	} {
		g, k := &fake{facts: c.ours}, &fake{facts: c.theirs}
		o := run(t, g, k, testTimes, testTimes)
		var refused *RefusedError
		if o.gave || !errors.As(o.takeErr, &refused) || !slices.Equal(refused.Reasons, c.want) {
			t.Errorf("%s: %+v", c.name, o)
		}
		if slices.Contains(g.calls, "offer") || slices.Contains(k.calls, "lay") {
			t.Errorf("%s: something was done: %v, %v", c.name, g.calls, k.calls)
		}
	}
	if r := compare(&Hello{Protocol: Protocol + 1, Facts: facts}, facts); len(r) != 1 ||
		!strings.Contains(r[0], "version") {
		t.Errorf("another protocol: %v", r)
	}
}

// TestRefusedByWhom: who takes can tell a difference of the two, which ends with the running one,
// from what is its own, and from what its version did.
func TestRefusedByWhom(t *testing.T) {
	misfit := &RefusedError{Reasons: []string{"the maps are another version's"}}
	for _, c := range []struct {
		name, at string
		err      error
		barred   bool
	}{
		{"starts", "facts", errors.New("it is starting"), false},
		{"barred", "facts", &BarredError{"3 attempts failed"}, true},
		{"offers nothing", "offer", errors.New("ports do not stand still"), false},
		{"maps differ", "lay", fmt.Errorf("lay: %w", misfit), false},
	} {
		g, k := &fake{}, &fake{}
		fail := func(call string) error {
			if call == c.at {
				return c.err
			}
			return nil
		}
		if c.at == "lay" {
			k.at = fail
		} else {
			g.at = fail
		}
		o := run(t, g, k, testTimes, testTimes)
		var refused *RefusedError
		var unable *UnableError
		if !errors.As(o.takeErr, &refused) || refused.Barred != c.barred || errors.As(o.takeErr, &unable) {
			t.Errorf("%s: %v, want a refusal, barred %v", c.name, o.takeErr, c.barred)
		}
	}
}

// TestDeathAtEachMessage: whichever side fails or dies, wherever: one has all in the end, never
// both and never neither of those that live.
func TestDeathAtEachMessage(t *testing.T) {
	died := errors.New("died")
	for _, side := range []string{"giver", "taker"} {
		calls := map[string][]string{"giver": {"facts", "offer", "stop"},
			"taker": {"facts", "lay", "prepare", "assume"}}[side]
		for _, at := range calls {
			t.Run(side+" at "+at, func(t *testing.T) {
				g, k := &fake{}, &fake{}
				fail := func(call string) error {
					if call == at {
						return died
					}
					return nil
				}
				if side == "giver" {
					g.at = fail
				} else {
					k.at = fail
				}
				o := run(t, g, k, testTimes, testTimes)
				if o.gave || o.giveErr == nil || o.takeErr == nil {
					t.Errorf("%+v", o)
				}
				n := 0
				for _, call := range g.calls {
					if call == "continue" {
						n++
					}
				}
				if offered := slices.Contains(g.calls, "offer"); offered != (n == 1) || n > 1 {
					t.Errorf("giver: %v", g.calls)
				}
				var refused *RefusedError
				var unable *UnableError
				waits, itself := errors.As(o.takeErr, &refused), errors.As(o.takeErr, &unable)
				if early := !slices.Contains(k.calls, "prepare"); early != (waits || itself) {
					t.Errorf("taker: %v, %v: it goes on waiting only where nothing was prepared", k.calls, o.takeErr)
				}
				if own := at == "lay" || side == "taker" && at == "facts"; own != itself || itself && waits {
					t.Errorf("refused %v, unable itself %v, by %v", waits, itself, o.takeErr)
				}
			})
		}
	}
}

// TestTakerThatIsToEnd: a next process that is asked to end takes nothing, at any step.
func TestTakerThatIsToEnd(t *testing.T) {
	for _, at := range []string{"prepare", "assume"} {
		g, k := &fake{}, &fake{}
		ctx, cancel := context.WithCancel(t.Context())
		k.at = func(call string) error {
			if call == at {
				cancel()
			}
			return nil
		}
		a, b := pair(t)
		gave := make(chan bool)
		go func() {
			ok, _ := Give(t.Context(), a, &giver{g}, "v1", testTimes)
			gave <- ok
		}()
		_, err := Take(ctx, b, &taker{k}, "v2", testTimes)
		b.Close()
		if ok := <-gave; ok || !errors.Is(err, context.Canceled) {
			t.Errorf("at %s: gave %v, %v", at, ok, err)
		}
		if at == "prepare" && slices.Contains(g.calls, "stop") {
			t.Error("the running process stopped its workers for nothing")
		}
		cancel()
	}
}

// TestGiverEndsLater: the running process does not end before the workers of the next one run, nor
// wait for them for long.
func TestGiverEndsLater(t *testing.T) {
	times := testTimes
	times.Run = 10 * time.Second
	for _, tells := range []bool{true, false} {
		a, b := pair(t)
		gave := make(chan bool)
		go func() {
			ok, _ := Give(t.Context(), a, &giver{&fake{}}, "v1", times)
			gave <- ok
		}()
		if _, err := Take(t.Context(), b, &taker{&fake{}}, "v2", times); err != nil {
			t.Fatal(err)
		}
		select {
		case <-gave:
			t.Fatal("it ended before the workers ran")
		case <-time.After(50 * time.Millisecond):
		}
		if !tells {
			b.Close() // died
		} else if err := Running(b, times); err != nil {
			t.Error(err)
		}
		if !<-gave {
			t.Error("nothing was given")
		}
	}
	times.Run = time.Millisecond
	a, b := pair(t)
	go Take(t.Context(), b, &taker{&fake{}}, "v2", times)
	if ok, err := Give(t.Context(), a, &giver{&fake{}}, "v1", times); !ok || err != nil {
		t.Errorf("without word of the workers: %v, %v", ok, err)
	}
}

// TestStoppedTaker: the next process is stopped between the state and taken, until the running one
// has gone on: its taken fails. If it has found that the state does not fit, it says why.
func TestStoppedTaker(t *testing.T) {
	for _, result := range []error{nil, errors.New("rings of 2025 and 187 frames")} {
		testStoppedTaker(t, result)
	}
}

func testStoppedTaker(t *testing.T, result error) {
	g, k := &fake{}, &fake{}
	goesOn := make(chan struct{})
	g.at = func(call string) error {
		if call == "continue" {
			close(goesOn)
		}
		return nil
	}
	k.at = func(call string) error {
		if call == "assume" {
			<-goesOn
			return result
		}
		return nil
	}
	times := testTimes
	times.Assume, times.Answer = 20*time.Millisecond, time.Second
	a, b := pair(t)
	gave := make(chan bool)
	go func() {
		ok, _ := Give(t.Context(), a, &giver{g}, "v1", times)
		gave <- ok // with its end open: it lives
	}()
	_, err := Take(t.Context(), b, &taker{k}, "v2", testTimes)
	if !errors.Is(err, unix.EPIPE) || !errors.Is(err, result) && result != nil {
		t.Errorf("taken after the running process went on: %v", err)
	}
	if <-gave {
		t.Error("gave, and went on")
	}
}

// TestWhoFailedAfterTheOffer: the running process counts only what the next one did not do. That
// one hears why the other one could not go on.
func TestWhoFailedAfterTheOffer(t *testing.T) {
	failed := errors.New("worker 1 does not stop")
	for _, c := range []struct {
		side, at string
		peer     bool
	}{
		{"giver", "offer", false}, {"giver", "stop", false}, {"taker", "lay", false}, {"taker", "prepare", true},
		{"taker", "assume", true},
	} {
		sides := map[string]*fake{"giver": {}, "taker": {}}
		sides[c.side].at = func(call string) error {
			if call == c.at {
				return failed
			}
			return nil
		}
		o := run(t, sides["giver"], sides["taker"], testTimes, testTimes)
		var peer *PeerError
		if o.gave || errors.As(o.giveErr, &peer) != c.peer {
			t.Errorf("%s at %s: gave %v, %v, the next process to blame: want %v", c.side, c.at, o.gave, o.giveErr,
				c.peer)
		}
		if !strings.Contains(fmt.Sprint(o.takeErr), failed.Error()) {
			t.Errorf("%s at %s: the next process has only %v", c.side, c.at, o.takeErr)
		}
	}
}

// TestOneDeadline: packets wait for Assume in all, whatever of the steps takes long. Where the
// running process itself took most of it, the next one is not to blame.
func TestOneDeadline(t *testing.T) {
	for _, slow := range []string{"stop", "taken"} {
		// One of several tries: threads of this process may wait for a CPU. Two deadlines one after
		// the other would take seven quarters of one in each try.
		var err error
		for range 10 {
			if err = waitsForOneDeadline(t, slow); err == nil {
				break
			}
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// waitsForOneDeadline returns an error unless packets waited for Assume during a hand-over of which
// a step is slow, and the side that was slow is the one to blame.
func waitsForOneDeadline(t *testing.T, slow string) error {
	t.Helper()
	times := testTimes
	times.Assume = 400 * time.Millisecond
	g := &fake{}
	var stopped, wentOn time.Time
	g.at = func(call string) error {
		switch call {
		case "stop":
			if stopped = time.Now(); slow == "stop" {
				time.Sleep(times.Assume * 3 / 4)
			}
		case "continue":
			wentOn = time.Now()
		}
		return nil
	}
	k := &fake{at: func(call string) error {
		if call == "assume" {
			time.Sleep(2 * times.Assume)
		}
		return nil
	}}
	o := run(t, g, k, times, testTimes)
	var peer *PeerError
	if o.gave || errors.As(o.giveErr, &peer) != (slow == "taken") {
		return fmt.Errorf("%s: gave %v, %w", slow, o.gave, o.giveErr)
	}
	if waited := wentOn.Sub(stopped); waited < times.Assume || waited > times.Assume*8/5 {
		return fmt.Errorf("%s: packets waited %v, want %v", slow, waited, times.Assume)
	}
	return nil
}

// TestTakenBeforeTheDeadlineIsRead: the running process was stopped while taken was sent. Its
// deadline is over when it goes on, and yet it must see that it has given. Where taken was not
// sent, it cannot be any more.
func TestTakenBeforeTheDeadlineIsRead(t *testing.T) {
	for _, sent := range []bool{true, false} {
		a, b := pair(t)
		if sent {
			if err := b.sendByte(taken, time.Second); err != nil {
				t.Fatal(err)
			}
		}
		gave, err := finish(a, []byte("where"), time.Now().Add(time.Nanosecond), testTimes)
		if gave != sent || gave != (err == nil) {
			t.Errorf("taken was sent before: %v; gave %v, %v", sent, gave, err)
		}
		if err := b.sendByte(taken, time.Second); !errors.Is(err, unix.EPIPE) {
			t.Errorf("sent afterwards: %v", err)
		}
	}
}

func TestFilesAreClosedAfterAnError(t *testing.T) {
	a, b := pair(t)
	before := open(t)
	if err := a.sendFiles(slices.Repeat([]int{2}, 5), time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := b.receiveFiles(3, time.Second); err == nil {
		t.Error("5 files for 3")
	}
	if n := open(t); n != before {
		t.Errorf("%d files are open, %d before", n, before)
	}
}

func open(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
