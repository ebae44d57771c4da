package owners

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestAdd: a pod that has all again, as it was the first to start after a crash, is not behind
// those that had followed it.
func TestAdd(t *testing.T) {
	for _, c := range []struct {
		list []string
		pod  string
		want []string
	}{
		{nil, "a", []string{"a"}},
		{[]string{"a"}, "b", []string{"a", "b"}},
		{[]string{"a", "b"}, "b", []string{"a", "b"}}, // its container was started again
		{[]string{"a", "b", "c"}, "b", []string{"a", "b"}},
		{[]string{"a", "b"}, "a", []string{"a"}},
	} {
		before := slices.Clone(c.list)
		if got := Add(c.list, c.pod); !slices.Equal(got, c.want) || !slices.Equal(c.list, before) {
			t.Errorf("%s after %v: %v, want %v; the list is %v", c.pod, before, got, c.want, c.list)
		}
	}
}

// TestBounded: the oldest pods are forgotten.
func TestBounded(t *testing.T) {
	var list []string
	for n := range 100 {
		list = Add(list, fmt.Sprint(n))
	}
	if len(list) != most || list[0] != fmt.Sprint(100-most) || list[most-1] != "99" {
		t.Errorf("%v", list)
	}
}

// TestSaved: what is saved is loaded, and nothing where there is no file.
func TestSaved(t *testing.T) {
	dir := t.TempDir()
	if list, err := Load(dir); err != nil || list != nil {
		t.Errorf("without a file: %v, %v", list, err)
	}
	want := []string{"0f3a", "77b1"}
	if err := Save(dir, want); err != nil {
		t.Fatal(err)
	}
	if list, err := Load(dir); err != nil || !slices.Equal(list, want) {
		t.Errorf("%v, %v; want %v", list, err, want)
	}
	for range 2 {
		if err := Remove(dir); err != nil {
			t.Error(err)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("left: %v, %v", files, err)
	}
}

// TestUnreadable: a file that is not ours is an error that names it, and can be replaced.
func TestUnreadable(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON": "pod-a", "another version": `{"version": 2, "owners": []}`,
		"an unknown field": `{"version": 1, "owners": [], "nodes": []}`, "empty": "",
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, Name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if list, err := Load(dir); err == nil || !strings.Contains(err.Error(), path) || list != nil {
			t.Errorf("%s: %v, %v", name, list, err)
		}
		if err := Save(dir, []string{"a"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
