package table

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// host is a row of the tests.
type host struct {
	name, note string
	conns      int // -1: not known
	bytes      uint64
}

var hosts = &Table[host]{
	Key:    func(h *host) string { return h.name },
	Urgent: func(h *host) bool { return h.note == "down" },
	Columns: []Column[host]{
		{Name: "NAME", Text: func(h *host) string { return h.name }},
		{Name: "CONNS", Show: Plain, Text: func(h *host) string { return fmt.Sprint(h.conns) },
			Number: func(h *host) (float64, bool) { return float64(h.conns), h.conns >= 0 }},
		{Name: "BYTES", Show: Rates, Counter: func(h *host) *uint64 { return &h.bytes }, Bytes: true},
		{Name: "NOTE", Show: Short, Text: func(h *host) string { return h.note[:min(1, len(h.note))] }},
		{Name: "NOTE", Show: Wide, Text: func(h *host) string { return h.note }},
	},
}

func names(list []host) string {
	var all []string
	for _, h := range list {
		all = append(all, h.name)
	}
	return strings.Join(all, " ")
}

// TestSort: numbers from the greatest, unknown ones last, texts in order; rows that are equal keep
// their order, and without a column urgent ones come first.
func TestSort(t *testing.T) {
	for column, want := range map[string]string{
		"": "b a c d", "conns": "d a c b", "CONNS": "d a c b", "bytes": "c a b d", "name": "a b c d",
		"note": "a c d b", "none": "b a c d",
	} {
		list := []host{{"a", "", 7, 5}, {"b", "down", -1, 5}, {"c", "", 7, 9}, {"d", "", 10, 0}}
		hosts.Sort(list, column)
		if got := names(list); got != want {
			t.Errorf("by %q: %s, want %s", column, got, want)
		}
	}
}

// TestRates: the difference to the answer before, by the time between. A new row, and one whose
// source has begun again, counted from 0. The answers stay as they are.
func TestRates(t *testing.T) {
	before := []host{{name: "a", bytes: 1000}, {name: "b", bytes: 500}, {name: "gone", bytes: 7}}
	now := []host{{name: "b", bytes: 500}, {name: "a", bytes: 5000}, {name: "new", bytes: 30}}
	want := []host{{name: "b"}, {name: "a", bytes: 2000}, {name: "new", bytes: 15}}
	if diff := cmp.Diff(want, hosts.Rates(before, now, 2*time.Second), cmp.AllowUnexported(host{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	again := []host{{name: "a", bytes: 40}}
	if got := hosts.Rates(now, again, 2*time.Second); got[0].bytes != 20 {
		t.Errorf("after a restart: %v", got)
	}
	if now[1].bytes != 5000 || before[0].bytes != 1000 {
		t.Error("an answer has changed")
	}
}

// TestForms: each form has its columns, and the one that rows are sorted by.
func TestForms(t *testing.T) {
	for f, want := range map[Form]string{
		{}:                          "NAME CONNS NOTE",
		{Rates: true, Sort: "note"}: "NAME BYTES/s NOTE",
		{Rates: true}:               "NAME BYTES/s",
		{Wide: true}:                "NAME CONNS BYTES NOTE",
		{Sort: "Bytes"}:             "NAME CONNS BYTES NOTE",
	} {
		if got := strings.Join(hosts.Grid(nil, f)[0], " "); got != want {
			t.Errorf("%+v: %s, want %s", f, got, want)
		}
	}
	grid := hosts.Grid([]host{{"a\nb", "", 1, 2048}, {"c", "down", 1, 0}}, Form{Wide: true})
	if diff := cmp.Diff([]string{"a; b", "1", "2.0KiB", "-"}, grid[1]); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := grid[2][3]; got != "down" {
		t.Errorf("the wide form has %q", got)
	}
	if got := hosts.Grid([]host{{note: "down"}}, Form{})[1][2]; got != "d" {
		t.Errorf("the short form has %q", got)
	}
	if got := strings.Join(hosts.Names(), " "); got != "name conns bytes note" {
		t.Errorf("names are %s", got)
	}
}

// TestLinesFit: lines have at most the width; only the widest columns give way, and a cell that is
// cut says so. Columns are aligned.
func TestLinesFit(t *testing.T) {
	grid := [][]string{
		{"NAME", "ADDRESS", "STATE"},
		{"web", strings.Repeat("2001:db8:", 6) + ":1", "ready"},
		{"a-service-with-a-long-näme", "192.0.2.1", "x"},
	}
	for _, width := range []int{0, 40, 60, 80, 100} {
		lines := Lines(grid, width)
		for _, line := range lines {
			if n := utf8.RuneCountInString(line); width > 0 && n > width {
				t.Errorf("width %d: %d in %q", width, n, line)
			}
			if !strings.HasSuffix(line, "STATE") && !strings.HasSuffix(line, "ready") &&
				!strings.HasSuffix(line, " x") {
				t.Errorf("width %d: the narrow column is cut: %q", width, line)
			}
		}
		if whole := strings.Contains(lines[1], ":1 "); whole != (width == 0 || width == 100) {
			t.Errorf("width %d: %q", width, lines[1])
		}
		if cut := strings.Contains(lines[1], "…"); cut != (width != 0 && width != 100) {
			t.Errorf("width %d: %q", width, lines[1])
		}
		at := utf8.RuneCountInString(lines[0][:strings.Index(lines[0], "STATE")])
		if got := utf8.RuneCountInString(lines[2][:strings.LastIndex(lines[2], "x")]); got != at {
			t.Errorf("width %d: columns begin at %d and %d", width, at, got)
		}
	}
	if got := Lines([][]string{{"ABCDEFGHIJ", "ABCDEFGHIJ"}}, 3)[0]; got != "ABCDE…  ABCDE…" {
		t.Errorf("much too narrow: %q", got)
	}
}

func TestByteCount(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0B", 1023: "1023B", 1024: "1.0KiB", 1536: "1.5KiB", 1 << 20: "1.0MiB", 3 << 30: "3.0GiB",
		^uint64(0): "16.0EiB",
	} {
		if got := ByteCount(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
