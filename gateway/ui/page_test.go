package ui

import (
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/nat/reason"
)

// TestEveryReasonHasAMeaning: the page explains each reason, and no other.
func TestEveryReasonHasAMeaning(t *testing.T) {
	var names []string
	for _, r := range reasons() {
		names = append(names, r.Reason)
		if r.Packet == "" || r.Advice == "" || strings.ContainsAny(r.Packet+r.Advice, "`") {
			t.Errorf("%+v", r)
		}
	}
	want := reason.Names()
	slices.Sort(names)
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("meanings of %v, want %v", names, want)
	}
}

// unsafe are ways by which a text could become HTML, code or a request to elsewhere. The browser
// refuses them, too, by the policy of the page.
var unsafe = regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|` +
	`createContextualFragment|setHTML|\beval\b|\bFunction\(|style=|javascript:|\son\w+=|https?://|//\w+\.`)

// namespaceSVG is a name, not an address that is asked.
const namespaceSVG = "http://www.w3.org/2000/svg"

// TestPageIsSelfContained: the page has no inline code or style, parses no text as HTML, and names
// nothing of another host. Each of its files is used.
func TestPageIsSelfContained(t *testing.T) {
	all, names := "", []string{}
	err := fs.WalkDir(files, "page", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := files.ReadFile(path)
		if err != nil {
			return err
		}
		names = append(names, d.Name())
		all += string(text)
		for i, line := range strings.Split(strings.ReplaceAll(string(text), namespaceSVG, ""), "\n") {
			if found := unsafe.FindString(line); found != "" {
				t.Errorf("%s:%d: %q", path, i+1, found)
			}
		}
		return nil
	})
	if err != nil || len(names) < 8 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		if name != "index.html" && !strings.Contains(all, `"`+name+`"`) && !strings.Contains(all, `'./`+name+`'`) {
			t.Errorf("no file uses %s", name)
		}
	}
}
