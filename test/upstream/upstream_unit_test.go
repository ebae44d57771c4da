package upstream

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// compare says in what the table differs from the names of a release.
func compare(names []string) (problems []string) {
	for _, name := range names {
		listed := slices.ContainsFunc(cases, func(c Case) bool { return c.Name == name })
		grouped := slices.ContainsFunc(groups, func(g string) bool { return strings.HasPrefix(name, g) })
		switch {
		case !listed && !grouped:
			problems = append(problems, fmt.Sprintf("the table has no case %q", name))
		case listed && grouped:
			problems = append(problems, fmt.Sprintf("the table has %q twice: listed, and in a group", name))
		}
	}
	for _, c := range cases {
		if !slices.Contains(names, c.Name) {
			problems = append(problems, fmt.Sprintf("the release has no case %q", c.Name))
		}
	}
	for _, g := range groups {
		if !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, g) }) {
			problems = append(problems, fmt.Sprintf("the release has no case that begins with %q", g))
		}
	}
	return problems
}

// The programs of this package are of the release that test/bed/cluster runs.
func TestOneRelease(t *testing.T) {
	version := regexp.MustCompile(`(?m)k8s\.io/kubernetes (v\S+)`)
	var found []string
	for _, path := range []string{"../bed/cluster/binaries/go.mod", "binaries/go.mod"} {
		text, err := os.ReadFile(filepath.FromSlash(path))
		if err != nil {
			t.Fatal(err)
		}
		m := version.FindSubmatch(text)
		if m == nil {
			t.Fatalf("%s requires no kubernetes", path)
		}
		found = append(found, string(m[1]))
	}
	if found[0] != found[1] {
		t.Errorf("test/bed/cluster runs kubernetes %s, the tests are of %s", found[0], found[1])
	}
}
