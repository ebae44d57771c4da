package rules

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// riddles match sentences whose subject or object is a pronoun that the reader has to resolve.
var riddles = []*regexp.Regexp{
	regexp.MustCompile(`(?:^|[.:] )What \w+`),
	regexp.MustCompile(`\bwhat (?:is|was|it|they|the|a|of|others|has|have|must|can|could|would|this|that|did|does|` +
		`comes|came|goes|makes|keeps|follows|else)\b`),
	regexp.MustCompile(`(?:^|[.,:;] )(?:[Ww]ho|[Ww]hoever|[Ww]hom) `),
	regexp.MustCompile(`\b[Ww](?:hoever|hatever|hichever|homever)\b`),
	regexp.MustCompile(`\bthose (?:of|that|who|which|in|with)\b`),
}

const advice = `Write subject, verb, object, with nouns:
	"What the table does not know is dropped"  ->  "The worker drops packets of unknown flows"
	"who does not answer"                      ->  "a router that does not answer"
	"those of UDP"                             ->  "UDP flows"
	"prints what it found"                     ->  "prints the addresses that it found"`

// bounds are riddles per 1,000 words of comments and messages (Go files without tests) or of text
// (Markdown). A bound is only ever lowered: the test fails, too, where a directory has become much
// better than its bound.
var bounds = map[string]float64{
	".": 0.5, "allocate": 0.4, "announce": 0.6, "bench": 0.2, "cmd": 0.0, "config": 0.6, "control": 0.2,
	"deploy": 0.0, "docs": 0.1, "docs/adr": 0.1, "fastpath": 0.2, "flowtable": 0.1, "gateway": 0.5,
	"host": 0.6, "internal": 0.6, "nat": 0.3, "serve": 0.2, "test": 0.4, "xdpprog": 0.8,
}

// passage is a comment, a message or a paragraph.
type passage struct{ at, text string }

func TestPlainWords(t *testing.T) {
	const slack = 0.2 // of a bound: less than one sentence in 5,000 words
	found := map[string][]passage{}
	words := map[string]int{}
	for dir, passages := range texts(t) {
		for _, p := range passages {
			words[dir] += len(strings.Fields(p.text))
			for _, r := range riddles {
				for range r.FindAllString(p.text, -1) {
					found[dir] = append(found[dir], p)
				}
			}
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(words)) {
		rate := float64(len(found[dir])) / float64(words[dir]) * 1000
		switch bound, listed := bounds[dir]; {
		case !listed:
			t.Errorf("%s has no bound: %d words, %.2f", dir, words[dir], rate)
		case rate > bound:
			t.Errorf("%s: %.2f sentences to decode per 1,000 words, %.2f is the bound. %s\n%s", dir, rate, bound,
				advice, list10(found[dir]))
		case rate < bound-slack:
			t.Errorf("%s: the bound is %.2f and %.2f is reached: lower the bound", dir, bound, rate)
		}
	}
	for dir := range bounds {
		if words[dir] == 0 {
			t.Errorf("%s has a bound and no text", dir)
		}
	}
}

func list10(found []passage) string {
	var b strings.Builder
	for _, p := range found[:min(10, len(found))] {
		text := strings.Join(strings.Fields(p.text), " ")
		fmt.Fprintf(&b, "\t%s: %s\n", p.at, text[:min(200, len(text))])
	}
	return b.String()
}

// texts returns the passages of each directory of the root.
func texts(t *testing.T) map[string][]passage {
	t.Helper()
	all := map[string][]passage{}
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	check(filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		check(err)
		if d.IsDir() {
			if d.Name() == "testdata" || name != "." && strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
			return nil
		}
		dir, _, nested := strings.Cut(name, "/")
		if !nested {
			dir = "."
		}
		switch {
		case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
			all[dir] = append(all[dir], ofGo(t, path)...)
		case strings.HasSuffix(name, ".md"):
			text, err := os.ReadFile(path)
			check(err)
			if strings.HasPrefix(name, "docs/adr/") {
				dir = "docs/adr"
			}
			for _, paragraph := range strings.Split(string(text), "\n\n") {
				all[dir] = append(all[dir], passage{name, strings.ReplaceAll(paragraph, "\n", " ")})
			}
		}
		return nil
	}))
	return all
}

// ofGo returns the comments of a file, and its strings of four words and more.
func ofGo(t *testing.T, path string) (all []passage) {
	t.Helper()
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, path, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	if ast.IsGenerated(f) {
		return nil
	}
	add := func(at token.Pos, text string) {
		p := files.Position(at)
		all = append(all, passage{fmt.Sprintf("%s:%d", p.Filename, p.Line), strings.ReplaceAll(text, "\n", " ")})
	}
	for _, group := range f.Comments {
		add(group.Pos(), group.Text())
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if text, err := strconv.Unquote(l.Value); err == nil && len(strings.Fields(text)) >= 4 {
				add(l.Pos(), text)
			}
		}
		return true
	})
	slices.SortFunc(all, func(a, b passage) int { return cmp.Compare(a.at, b.at) })
	return all
}
