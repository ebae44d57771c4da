package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// readmeWords is what a person reads in ten minutes beside trying the commands.
const readmeWords = 1250

// pages are the Markdown files that people read: of the root, of docs, and beside code. Golden
// files are none.
func pages(t *testing.T) (list []string) {
	t.Helper()
	for _, pattern := range []string{
		"*.md", ".github/*.md", ".github/*/*.md", "docs/*.md", "docs/*/*.md", "bench/*/*.md", "deploy/*/*.md",
	} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, found...)
	}
	if !slices.Contains(list, filepath.Join(root, "README.md")) {
		t.Fatalf("no README.md among %d pages", len(list))
	}
	return list
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestReadmeIsShort(t *testing.T) {
	if n := len(strings.Fields(read(t, filepath.Join(root, "README.md")))); n > readmeWords {
		t.Errorf("README.md has %d words, and %d are enough: move what not every reader needs to docs", n, readmeWords)
	}
}

// TestReadmeMapsDocs: a page that README does not link is one that nobody finds.
func TestReadmeMapsDocs(t *testing.T) {
	for _, c := range []struct{ from, pattern, in string }{
		{"README.md", "docs/*.md", ""},
		{"docs/adr/README.md", "docs/adr/[0-9]*.md", "docs/adr/"},
	} {
		text := read(t, filepath.Join(root, c.from))
		found, err := filepath.Glob(filepath.Join(root, c.pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", c.pattern, found, err)
		}
		for _, path := range found {
			name := strings.TrimPrefix(strings.TrimPrefix(path, root+"/"), c.in)
			if !strings.Contains(text, "]("+name+") |") {
				t.Errorf("%s has no row for %s", c.from, name)
			}
		}
	}
}

var (
	fence   = regexp.MustCompile("(?ms)^(```|~~~).*?^(```|~~~)$")
	code    = regexp.MustCompile("`[^`\n]*`")
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*?) *$`)
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	scheme  = regexp.MustCompile(`^[a-z]+:`)
)

// prose is a page without its code.
func prose(text string) string { return fence.ReplaceAllString(text, "") }

// anchors are the headings of a page, as GitHub names them: lower case, letters, digits, - and _,
// blanks as -, and a number where one name comes again.
func anchors(text string) map[string]bool {
	names := make(map[string]bool)
	times := make(map[string]int)
	for _, h := range heading.FindAllStringSubmatch(prose(text), -1) {
		var b strings.Builder
		for _, r := range strings.ToLower(strings.ReplaceAll(h[1], `\`, "")) {
			switch {
			case r == ' ':
				b.WriteByte('-')
			case r == '-' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || r > 0x7f:
				b.WriteRune(r)
			}
		}
		name := b.String()
		if n := times[name]; n > 0 {
			names[name+"-"+string(rune('0'+n))] = true
		}
		times[name]++
		names[name] = true
	}
	return names
}

// broken are the relative links of a page that lead nowhere; how many links it has is returned,
// too.
func broken(page string) (list []string, links int, err error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return nil, 0, err
	}
	for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(prose(string(text)), "`"), -1) {
		if scheme.MatchString(m[1]) {
			continue
		}
		links++
		file, anchor, _ := strings.Cut(m[1], "#")
		target := page
		if file != "" {
			target = filepath.Join(filepath.Dir(page), file)
		}
		if _, err := os.Stat(target); err != nil {
			list = append(list, m[1]+": no such file")
			continue
		}
		if anchor == "" {
			continue
		}
		if text, err := os.ReadFile(target); err != nil || !anchors(string(text))[anchor] {
			list = append(list, m[1]+": no such heading")
		}
	}
	return list, links, nil
}

// TestLinks: every relative link of every page resolves, anchors included.
func TestLinks(t *testing.T) {
	all := 0
	for _, page := range pages(t) {
		list, links, err := broken(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range list {
			t.Errorf("%s: %s", strings.TrimPrefix(page, root+"/"), l)
		}
		all += links
	}
	if all < 100 {
		t.Errorf("%d links were found: the test does not see them", all)
	}
}

func TestBrokenLinks(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.md": "# A page\n## What it's for: `x`, y\n## Twice\n## Twice\n```\n## Not one\n[no](gone.md)\n```\n" +
			"[b](b.md) [B](b.md#b_b) [own](#what-its-for-x-y) [second](#twice-1)\n" +
			"[web](https://example.org/x#y) `[code](gone.md)` [d](.)\n" +
			"![plot](plot.svg) [file](b.md#none) [heading](#not-one) [`name`](gone.md)\n",
		"b.md": "## B_b\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	list, links, err := broken(filepath.Join(dir, "a.md"))
	want := []string{
		"plot.svg: no such file", "b.md#none: no such heading", "#not-one: no such heading", "gone.md: no such file",
	}
	if err != nil || links != 9 || !slices.Equal(list, want) {
		t.Errorf("%d links, broken %q, want 9 and %q; %v", links, list, want, err)
	}
}
