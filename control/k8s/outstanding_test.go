package k8s

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"sluice.dev/sluice/control/objects"
)

func testProblem(name, message string) objects.Problem {
	return objects.Problem{Source: objects.Source{Kind: Kind}, Severity: objects.Refused, Message: message,
		Object: objects.ObjectID{Kind: objects.KindService, Namespace: "shop", Name: name}}
}

// clerk writes what is due, as Events does, and notes it.
type clerk struct {
	outstanding
	now    time.Time
	refuse string // what is about this object is refused
	did    []string
}

func newClerk() *clerk { return &clerk{outstanding: newOutstanding(), now: time.Unix(1e9, 0)} }

// pass lets time go by and writes at most most Events about a list.
func (c *clerk) pass(d time.Duration, most int, list ...objects.Problem) {
	c.now = c.now.Add(d)
	for range most {
		c.look(list, c.now)
		s, _ := c.due(c.now)
		switch {
		case s == nil:
			return
		case s.object.Name == c.refuse:
			s.refused(c.now)
			c.did = append(c.did, "refused "+s.object.Name)
			continue
		case s.name != "" && s.note == s.text():
			c.did = append(c.did, fmt.Sprintf("%s x%d", s.object.Name, s.count))
		default:
			s.name, s.note, s.count = "event", s.text(), 1
			c.did = append(c.did, s.object.Name+" "+s.note)
		}
		s.wrote(c.now)
	}
}

// TestOutstanding: which Events are written, in which order.
func TestOutstanding(t *testing.T) {
	a, b, c := testProblem("a", "x"), testProblem("b", "x"), testProblem("c", "x")
	other := a
	other.Message, other.Source.Path = "y", "elsewhere"
	field := a
	field.Field = "spec"
	elsewhere := a
	elsewhere.Source.Kind = objects.Manifests
	const all, long = 100, time.Hour
	for _, tt := range []struct {
		name string
		do   func(*clerk)
		want string
	}{
		{"once", func(k *clerk) { k.pass(0, all, a); k.pass(long, all, a) }, "a x"},
		{"of files none", func(k *clerk) { k.pass(0, all, elsewhere) }, ""},
		{"a field is another", func(k *clerk) { k.pass(0, all, a, field) }, "a x, a spec: x"},
		{"two of one kind are one", func(k *clerk) { k.pass(0, all, a, other); k.pass(long, all, a, other) },
			"a x (and 1 more)"},
		{"it returns", func(k *clerk) { k.pass(0, all, a); k.pass(long, all); k.pass(time.Second, all, a) },
			"a x, a x2"},
		{"it returns at the end of the memory",
			func(k *clerk) { k.pass(0, all, a); k.pass(long, all); k.pass(eventMemory, all, a) }, "a x, a x2"},
		{"it returns after the memory", func(k *clerk) {
			k.pass(0, all, a)
			k.pass(long, all)
			k.pass(eventMemory+1, all)
			k.pass(0, all, a)
		}, "a x, a x"},
		{"it flaps", func(k *clerk) {
			for range 600 {
				k.pass(time.Second, all, a)
				k.pass(time.Second, all)
			}
		}, "a x, a x2, a x4, a x8, a x16, a x32, a x64, a x128, a x256, a x512"},
		{"its text changes all the time", func(k *clerk) {
			for i := range 60 {
				k.pass(time.Second, all, testProblem("a", fmt.Sprint(i)))
			}
		}, "a 0, a 2, a 6, a 14, a 30"},
		{"the refused is no obstacle", func(k *clerk) { k.refuse = "a"; k.pass(0, all, a, b, c) },
			"refused a, b x, c x"},
		{"the refused is tried again", func(k *clerk) {
			k.refuse = "a"
			k.pass(0, all, a)
			k.pass(eventRetry-1, all, a)
			k.pass(1, all, a, b)
			k.refuse = ""
			k.pass(2*eventRetry, all, a)
		}, "refused a, b x, refused a, a x"},
		{"the resolved is no obstacle", func(k *clerk) { k.pass(0, 1, a, b); k.pass(0, all, c) }, "a x, c x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := newClerk()
			tt.do(k)
			if got := strings.Join(k.did, ", "); got != tt.want {
				t.Errorf("written: %s\nwant:    %s", got, tt.want)
			}
		})
	}
}

// TestOutstandingIsBounded: what is over makes room for what is new.
func TestOutstandingIsBounded(t *testing.T) {
	k := newClerk()
	var list []objects.Problem
	for i := range 2 * maxEvents {
		list = append(list, inNamespace(fmt.Sprint("n", i%8), testProblem(fmt.Sprint("s", i), "x")))
	}
	k.look(list[:maxEvents+1], k.now)
	if len(k.series) != maxEvents {
		t.Errorf("%d are remembered, want %d", len(k.series), maxEvents)
	}
	for _, s := range k.series {
		s.name, s.note = "event", s.text()
		s.wrote(k.now)
	}
	k.pass(time.Second, 1, list[maxEvents:]...)
	if len(k.did) != 0 {
		t.Errorf("written without room: %v", k.did)
	}
	k.pass(time.Second, 1, list[maxEvents:]...)
	if want := fmt.Sprintf("s%d x", maxEvents); len(k.did) != 1 || k.did[0] != want {
		t.Errorf("written: %v, want %s: what is over made no room", k.did, want)
	}
}

func inNamespace(name string, p objects.Problem) objects.Problem {
	p.Object.Namespace = name
	return p
}

// TestNamespacesTakeTurns: who makes more Problems than Events can be written about, and new ones
// all the time, delays another namespace's Event by one of his own, and leaves room for it. It had
// none, as long as 4,096 of his were outstanding.
func TestNamespacesTakeTurns(t *testing.T) {
	k := newClerk()
	var list []objects.Problem
	for i := range 2 * maxEvents {
		list = append(list, inNamespace("a", testProblem(fmt.Sprint("s", i), "x")))
	}
	k.pass(time.Second, 25, list...)
	k.did = nil
	for i := range 10 { // younger ones of his, besides
		list = append(list, inNamespace("a", testProblem(fmt.Sprint("t", i), "x")))
		now := append(list[maxEvents*i/10:len(list):len(list)], testProblem("victim", fmt.Sprint(i)))
		k.pass(eventMaxInterval, 2, now...)
		if want := fmt.Sprint("victim ", i); !slices.Contains(k.did, want) {
			t.Fatalf("written: %v, want %q among them", k.did, want)
		}
		k.did = nil
	}
	if got := k.authors["a"].series; got > maxNamespaceEvents {
		t.Errorf("%d series of one namespace, want %d at most", got, maxNamespaceEvents)
	}
	k.look(nil, k.now)
	k.look(nil, k.now.Add(2*eventMemory))
	if len(k.series) != 0 || len(k.authors) != 0 {
		t.Errorf("%d series of %d namespaces are remembered for ever", len(k.series), len(k.authors))
	}
}

// TestNextEventTime when to look again.
func TestNextEventTime(t *testing.T) {
	k := newClerk()
	k.refuse = "a"
	k.pass(0, 3, testProblem("a", "x"), testProblem("b", "x"))
	k.pass(0, 1, testProblem("a", "x"), testProblem("b", "y"))
	if s, at := k.due(k.now); s != nil || !at.Equal(k.now.Add(eventMinInterval)) {
		t.Errorf("%v at %v, want the text's after %v", s, at, eventMinInterval)
	}
	k.look([]objects.Problem{testProblem("a", "x")}, k.now)
	if s, at := k.due(k.now); s != nil || !at.Equal(k.now.Add(eventRetry)) {
		t.Errorf("%v at %v, want the retry after %v", s, at, eventRetry)
	}
}

// TestEventTextIsTruncated with its tail.
func TestEventTextIsTruncated(t *testing.T) {
	p := testProblem("a", strings.Repeat("é", maxNote))
	o := newOutstanding()
	o.look([]objects.Problem{p, p}, time.Unix(0, 0))
	s, _ := o.due(time.Unix(0, 0))
	if n := s.text(); len(n) > maxNote || !strings.HasSuffix(n, "é (and 1 more)") {
		t.Errorf("%d bytes that end with %q", len(n), n[max(0, len(n)-20):])
	}
}

// TestNoteIsPrintable: an Event repeats text of an object, and kubectl prints it to a terminal.
func TestNoteIsPrintable(t *testing.T) {
	p := testProblem("a", strings.Repeat("a\x1b[2J\u009b\u202e\u2028\n\x00\xff", 500))
	p.Field = "spec.\x1b]0;owned\x07"
	c := newClerk()
	c.pass(time.Second, 1, p)
	if len(c.did) != 1 || len(c.did[0]) < 900 || len(c.did[0]) > maxNote+2 || !utf8.ValidString(c.did[0]) ||
		strings.ContainsFunc(c.did[0], func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("%q", c.did)
	}
}
