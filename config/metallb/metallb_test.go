package metallb

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sluice.dev/sluice/announce/kinds"
)

var update = flag.Bool("update", false, "write the golden files")

func convert(t *testing.T, name string) *Result {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Convert([]Input{{name, data}}, Options{Namespace: "sluice-system", MetalLB: "metallb-system",
		Class: "sluice.dev/sluice"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Installations in MetalLB's documented shapes, to the letter.
func TestConvert(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"fabric", "services", "secrets"} {
		t.Run(name, func(t *testing.T) {
			r := convert(t, name)
			var b bytes.Buffer
			b.Write(r.YAML)
			b.WriteString("=====\n")
			notes := func(list []Note) {
				for _, n := range list {
					fmt.Fprintf(&b, "    %s | %s | %s\n", n.Field, n.Text, n.Do)
				}
			}
			for _, o := range r.Objects {
				fmt.Fprintf(&b, "%s | %s | %s\n", o.Object, o.AsItIs, o.Becomes)
				notes(o.Notes)
			}
			for _, s := range r.Services {
				fmt.Fprintf(&b, "%s | %s | %s | %s\n", s.Service, s.Has, s.Gets, s.Pool)
				notes(s.Notes)
			}
			for _, w := range r.Warnings {
				b.WriteString(w + "\n")
			}
			b.WriteString(r.SkippedText() + "\n")
			path := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := os.ReadFile(path); err != nil || !bytes.Equal(b.Bytes(), want) {
				t.Errorf("%s is not what came out (%v); see the difference after `go test ./config/metallb "+
					"-update`\n%s", path, err, b.Bytes())
			}
		})
	}
}

// TestManifestIsRead: the announcer reads all that the manifest has, and misses nothing in it but
// Secrets.
func TestManifestIsRead(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"fabric", "services", "secrets"} {
		c := conversion{result: &Result{Skipped: map[string]int{}}}
		if err := c.decode(Input{name, convert(t, name).YAML}); err != nil {
			t.Fatal(err)
		}
		if len(c.result.Skipped) == 0 {
			t.Errorf("%s: the manifest is empty", name)
		}
		for kind := range c.result.Skipped {
			if !kinds.Known(kind) || kind == "IPAddressPool" {
				t.Errorf("%s: the manifest has a %s", name, kind)
			}
		}
	}
}

// TestSaidByAnnouncer: every problem that the announcer has an Event for is among the notes.
func TestSaidByAnnouncer(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"fabric", "services", "secrets"} {
		data, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		c := conversion{options: Options{Namespace: "sluice-system", MetalLB: "metallb-system"},
			result: &Result{Skipped: map[string]int{}}}
		if err := c.decode(Input{name, data}); err != nil {
			t.Fatal(err)
		}
		var list []*unstructured.Unstructured
		for _, o := range c.theirs {
			if known(o) && !c.elsewhere(o) {
				list = append(list, o)
			}
		}
		r := kinds.Reader{Password: kinds.PasswordIn("", nil)}
		_, problems := r.Read(list)
		told := convert(t, name)
		for _, p := range problems {
			if strings.Contains(p.Note, "passwordSecret") { // there are Secrets
				continue
			}
			i := slices.IndexFunc(told.Objects, func(o Object) bool { return o.Object == p.About.String() })
			if i < 0 {
				t.Errorf("%s: nothing is said of %v", name, p.About)
				continue
			}
			o := &told.Objects[i]
			said := slices.ContainsFunc(o.Notes, func(n Note) bool {
				gap := kinds.Gap{Path: n.Field, Why: n.Text, Do: n.Do}
				return n.Text == strings.ReplaceAll(p.Note, "\n", "; ") ||
					n.Field != "" && strings.Contains(p.Note, gap.String())
			})
			if !said || o.AsItIs == All && p.Reason != kinds.NotFound {
				t.Errorf("%s: %v: %q is not said; %+v", name, p.About, p.Note, o)
			}
		}
	}
}

// What is no Kubernetes object is named with file and document.
func TestRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a: b":                            "in.yaml: document 1: apiVersion and kind are missing",
		"---\n{}\n---\n- 1":               "in.yaml: document 2: ",
		"a: [":                            "in.yaml: document 1: ",
		"{apiVersion: v1, kind: Service}": "Service: metadata.name is missing",
		"{apiVersion: v1, kind: List, items: [1]}":                               "items[0] is no object",
		"{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: 7}}": "Service a: ",
	} {
		_, err := Convert([]Input{{"in.yaml", []byte(text)}}, Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
