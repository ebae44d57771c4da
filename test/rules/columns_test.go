package rules

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// Lines end by these columns, where a tab is tabColumns wide.
const (
	proseColumns = 100 // Markdown, and comments of Go that have a line of their own
	codeColumns  = 120
	tabColumns   = 4
)

func columns(line string) int {
	return utf8.RuneCountInString(line) + (tabColumns-1)*strings.Count(line, "\t")
}

// filesWith returns the files of the repository that have one of these extensions.
func filesWith(t *testing.T, extensions ...string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "out" || d.Name() == "bin" || d.Name() == "testdata"):
			return filepath.SkipDir
		}
		for _, e := range extensions {
			if strings.HasSuffix(path, e) {
				list = append(list, path)
			}
		}
		return nil
	})
	if err != nil || len(list) == 0 {
		t.Fatalf("%v: %d files, %v", extensions, len(list), err)
	}
	return list
}

// TestCodeColumns: what does not fit beside another file on a screen is not read. A raw string or a
// link that cannot be broken is let through.
func TestCodeColumns(t *testing.T) {
	for _, path := range filesWith(t, ".go", ".s") {
		text := read(t, path)
		if strings.Contains(text[:min(len(text), 600)], "DO NOT EDIT") {
			continue
		}
		raw := false // in a string between backquotes
		for i, line := range strings.Split(text, "\n") {
			inRaw := raw || strings.Contains(line, "`")
			if strings.Count(line, "`")%2 != 0 {
				raw = !raw
			}
			limit, comment := codeColumns, strings.HasPrefix(strings.TrimSpace(line), "// ")
			if comment && strings.HasSuffix(path, ".go") {
				limit = proseColumns
			}
			if inRaw && !comment || strings.Contains(line, "://") || strings.HasPrefix(line, "//go:") {
				continue
			}
			if n := columns(line); n > limit {
				t.Errorf("%s:%d: ends in column %d, and %d is the last", path, i+1, n, limit)
			}
		}
	}
}

var fenceLine = regexp.MustCompile("^ *```")

// TestProseColumns leaves tables, code, drawings and what is generated as they are.
func TestProseColumns(t *testing.T) {
	for _, path := range pages(t) {
		code, generated := false, false
		for i, line := range strings.Split(read(t, path), "\n") {
			switch {
			case fenceLine.MatchString(line):
				code = !code
			case strings.HasPrefix(line, "<!-- figures: begin"):
				generated = true
			case strings.HasPrefix(line, "<!-- figures: end"):
				generated = false
			}
			text := strings.TrimSpace(line)
			if code || generated || strings.HasPrefix(text, "|") || strings.HasPrefix(line, "    ") {
				continue
			}
			// A single word, as a link, cannot be broken, and neither can a command.
			if n := columns(line); n > proseColumns && strings.Contains(text, " ") && !strings.HasPrefix(text, "`") {
				t.Errorf("%s:%d: ends in column %d, and %d is the last", path, i+1, n, proseColumns)
			}
		}
	}
}
