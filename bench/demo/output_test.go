package demo

import (
	"errors"
	"strings"
	"testing"
)

func TestPaper(t *testing.T) {
	for _, tc := range []struct {
		name  string
		write func(*report)
		want  string
	}{
		{"heading", func(p *report) { p.heading(3, "UDP") }, "\n3. UDP\n"},
		{"line", func(p *report) { p.say("%d of %d", 1, 2) }, "   1 of 2\n"},
		{"empty line", func(p *report) { p.say("") }, "\n"},
		{"met", func(p *report) { p.expect(true, "%d errors", 0) }, "   ok 0 errors\n"},
		{"not met", func(p *report) { p.expect(false, "%d errors", 7) }, "   FAILED expected: 7 errors\n"},
		{"muted", func(p *report) { p.muted = func() bool { return true }; p.expect(false, "x"); p.fail("x") }, ""},
		{"table", func(p *report) {
			c := columns{-6, 4}
			p.head(c, "name", "n", "why")
			p.row(c, "é", 12, "long text")
		}, "   name       n  why\n   é         12  long text\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			tc.write(newReport(&out))
			if out.String() != tc.want {
				t.Errorf("got\n%q\nwant\n%q", out.String(), tc.want)
			}
		})
	}
}

func TestVerdict(t *testing.T) {
	for _, tc := range []struct {
		name    string
		results []bool
		failed  bool
		want    string
	}{
		{"all met", []bool{true, true}, false, "All 2 expectations met in"},
		{"one of three not met", []bool{true, false, true}, true, "1 FAILED, 2 met after"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			d := &demo{p: newReport(&out)}
			for _, ok := range tc.results {
				d.p.expect(ok, "something")
			}
			if err := d.verdict(); errors.Is(err, ErrExpectation) != tc.failed {
				t.Errorf("error %v", err)
			}
			if !strings.Contains(out.String(), tc.want) {
				t.Errorf("got %q, want %q", out.String(), tc.want)
			}
		})
	}
}

func TestWords(t *testing.T) {
	for _, tc := range []struct{ name, got, want string }{
		{"small number", grouped(999), "999"},
		{"thousands", grouped(12000), "12,000"},
		{"millions", grouped(uint64(1234567)), "1,234,567"},
		{"negative", grouped(int64(-123456)), "-123,456"},
		{"counts, largest first, zeros left out", counts(map[string]uint64{"a": 1, "c": 2000, "b": 1, "none": 0}),
			"c 2,000, a 1, b 1"},
		{"counts beyond half the range", counts(map[string]uint64{"a": 1, "b": 1 << 63}),
			"b 9,223,372,036,854,775,808, a 1"},
		{"no counts", counts(nil), "none"},
		{"keys", keys(map[string]int64{"b": 1, "a": 2}), "a b"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.got != tc.want {
				t.Errorf("got %q, want %q", tc.got, tc.want)
			}
		})
	}
}
