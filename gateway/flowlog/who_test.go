package flowlog

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// lineAt returns a line of a flow of client n from port 21360, at a second after t0. start is of an
// end.
func lineAt(event string, n, at, start int) string {
	clock := func(s int) string { return t0.Add(time.Duration(s) * time.Second).Format(timeFormat) }
	more := ""
	if event == End {
		more = `,"why":"timeout"`
		if start >= 0 {
			more = fmt.Sprintf(`,"start":%q%s`, clock(start), more)
		}
	}
	return fmt.Sprintf(`{"time":%q,"event":%q,"protocol":"TCP","client":"198.51.100.%d:40000","vip":"203.0.113.9:80",`+
		`"snat":"10.0.0.1:21360","backend":"10.0.1.12:8080"%s}`, clock(at), event, n, more) + "\n"
}

func otherLine(event string, at, lines int) string {
	return string(note(nil, t0.Add(time.Duration(at)*time.Second), event, uint64(lines)))
}

// TestFind: who had a source at a time, by begins and ends, of which some are missing.
func TestFind(t *testing.T) {
	other := strings.ReplaceAll(lineAt(Begin, 9, 1, -1), "21360", "213601")
	for _, tt := range []struct {
		name  string
		lines string
		at    int
		want  string // holders, before and after
	}{
		{"alive", lineAt(Begin, 1, 10, -1), 20, "1 from 10"},
		{"later alive", lineAt(Begin, 1, 10, -1), 5, "after 1 from 10 later 1 from 10"},
		{"ended since", lineAt(Begin, 1, 10, -1) + lineAt(End, 1, 30, 10), 20, "1 from 10 to 30"},
		{"ended before", lineAt(Begin, 1, 10, -1) + lineAt(End, 1, 30, 10), 40, "before 1 to 30"},
		{"between two", lineAt(Begin, 1, 10, -1) + lineAt(End, 1, 30, 10) + lineAt(Begin, 2, 50, -1), 40,
			"before 1 to 30 after 2 from 50 later 2 from 50"},
		{"the second of two", lineAt(Begin, 1, 10, -1) + lineAt(End, 1, 30, 10) + lineAt(Begin, 2, 31, -1), 40,
			"2 from 31 before 1 to 30"},
		{"without its begin", lineAt(End, 1, 30, 10), 20, "1 from 10 to 30"},
		{"without begin and start", lineAt(End, 1, 30, -1), 20, "1 to 30"},
		{"without its end", lineAt(Begin, 1, 10, -1) + lineAt(Begin, 1, 50, -1), 20,
			"1 from 10 to 50 after 1 from 50 later 1 from 50"},
		{"all later ones", lineAt(Begin, 1, 30, -1) + lineAt(Begin, 2, 30, -1) + lineAt(End, 1, 40, 30) +
			lineAt(Begin, 3, 50, -1), 20, "after 1 from 30 later 2 from 30 later 3 from 50"},
		{"the end before the begin", lineAt(End, 1, 30, 10) + lineAt(Begin, 1, 10, -1), 40, "before 1 to 30"},
		{"over a restart", lineAt(Begin, 1, 10, -1) + otherLine(Open, 15, 0), 20, "1 from 10 restarts 1"},
		{"before a restart", lineAt(Begin, 1, 10, -1) + otherLine(Open, 25, 0), 20, "1 from 10"},
		{"lost lines", otherLine(Lost, 1, 5) + lineAt(Begin, 1, 10, -1) + otherLine(Lost, 11, 2), 20,
			"1 from 10 lost 7"},
		{"another port", other, 20, ""},
		{"torn lines", lineAt(Begin, 1, 10, -1)[:100] + "\n" + lineAt(Begin, 2, 10, -1) + lineAt(Begin, 3, 10, -1)[:50],
			20, "2 from 10"},
		{"nothing", "", 20, ""},
	} {
		for _, form := range []string{plain, compressed} {
			t.Run(tt.name+" "+form, func(t *testing.T) {
				dir := t.TempDir()
				path := filepath.Join(dir, prefix+"1"+plain)
				if err := os.WriteFile(path, []byte(tt.lines), 0o600); err != nil {
					t.Fatal(err)
				}
				if form == compressed {
					if err := compress(path, new(atomic.Bool)); err != nil {
						t.Fatal(err)
					}
				}
				a, err := Find(dir, Query{
					SNAT: netip.MustParseAddrPort("10.0.0.1:21360"), Backend: netip.MustParseAddrPort("10.0.1.12:8080"),
					Protocol: "tcp", At: t0.Add(time.Duration(tt.at) * time.Second),
				})
				if err != nil || a.Files != 1 {
					t.Fatalf("%+v, %v", a, err)
				}
				if got := sentence(a); got != tt.want {
					t.Errorf("got %q, want %q", got, tt.want)
				}
			})
		}
	}
	for _, q := range []Query{
		{SNAT: netip.MustParseAddrPort("10.0.0.1:21360"), Backend: netip.MustParseAddrPort("10.0.1.13:8080")},
		{SNAT: netip.MustParseAddrPort("10.0.0.1:21360"), Protocol: "udp"},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, prefix+"1"+plain)
		if err := os.WriteFile(path, []byte(lineAt(Begin, 1, 0, -1)), 0o600); err != nil {
			t.Fatal(err)
		}
		q.At = t0.Add(time.Hour)
		if a, err := Find(dir, q); err != nil || len(a.Holders) != 0 {
			t.Errorf("%+v: %+v, %v", q, a, err)
		}
	}
}

// TestFindSkipsFiles: a file that cannot be read, or not to its end, is named as a gap, and the
// others are searched. Without a readable file there is no answer.
func TestFindSkipsFiles(t *testing.T) {
	whole := lineAt(Begin, 1, 10, -1) + strings.Repeat(otherLine(Lost, 1, 0), 1000)
	for _, tt := range []struct {
		name  string
		spoil func([]byte) []byte
		from  string // of the answer, from the spoiled file
	}{
		{"empty", func([]byte) []byte { return nil }, ""},
		{"no gzip", func(b []byte) []byte { return bytes.Repeat([]byte("x"), len(b)) }, ""},
		{"truncated", func(b []byte) []byte { return b[:len(b)-1] }, "1 from 10"},
		{"corrupt", func(b []byte) []byte { b[len(b)-8] ^= 1; return b }, "1 from 10"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			q := Query{SNAT: netip.MustParseAddrPort("10.0.0.1:21360"), At: t0.Add(30 * time.Second)}
			path := filepath.Join(dir, prefix+"1"+plain)
			if err := os.WriteFile(path, []byte(whole), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := compress(path, new(atomic.Bool)); err != nil {
				t.Fatal(err)
			}
			path = filepath.Join(dir, prefix+"1"+compressed)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, tt.spoil(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if a, err := Find(dir, q); (err == nil) != (tt.from != "") {
				t.Errorf("alone: %+v, %v", a, err)
			}
			next := filepath.Join(dir, prefix+"2"+plain)
			if err := os.WriteFile(next, []byte(lineAt(Begin, 2, 20, -1)), 0o600); err != nil {
				t.Fatal(err)
			}
			a, err := Find(dir, q)
			if err != nil || len(a.Unread) != 1 || !strings.HasPrefix(a.Unread[0], filepath.Base(path)) {
				t.Fatalf("%+v, %v", a, err)
			}
			for i := range a.Holders {
				if a.Holders[i].Client.Addr() == netip.MustParseAddr("198.51.100.2") {
					return
				}
			}
			t.Errorf("the flow of the other file is missing: %+v", a)
		})
	}
}

// sentence describes an answer.
func sentence(a *Answer) string {
	var words []string
	seconds := func(t time.Time) string { return fmt.Sprint(int(t.Sub(t0).Seconds())) }
	one := func(word string, h *Holder, start, end bool) {
		number := strings.TrimPrefix(h.Client.Addr().String(), "198.51.100.")
		words = append(words, strings.TrimPrefix(word+" "+number, " "))
		if start && !h.Start.IsZero() {
			words = append(words, "from "+seconds(h.Start))
		}
		if end && !h.Ended.IsZero() {
			words = append(words, "to "+seconds(h.Ended))
		}
	}
	for i := range a.Holders {
		one("", &a.Holders[i], true, true)
		if n := a.Holders[i].Restarts; n > 0 {
			words = append(words, fmt.Sprint("restarts ", n))
		}
	}
	if a.Before != nil {
		one("before", a.Before, false, true)
	}
	if a.After != nil {
		one("after", a.After, true, false)
	}
	slices.SortFunc(a.Later, func(a, b Holder) int { return a.Start.Compare(b.Start) })
	for i := range a.Later {
		one("later", &a.Later[i], true, true)
	}
	if a.Lost > 0 {
		words = append(words, fmt.Sprint("lost ", a.Lost))
	}
	return strings.Join(words, " ")
}
