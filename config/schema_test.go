package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write schema.json")

// TestSchemaFile: editors and the chart have the schema from the file.
func TestSchemaFile(t *testing.T) {
	const file = "schema.json"
	got := makeSchema()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s is not the schema, run `go generate ./config` (-file +schema):\n%s", file, diff)
	}
}

// compiled is the schema in the library that Helm has.
var compiled = sync.OnceValues(func() (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("gateway.json", doc); err != nil {
		return nil, err
	}
	return c.Compile("gateway.json")
})

// refusal returns why the schema refuses a file, or nil. Editors read YAML the same way: version
// 1.2, in which "on" is a text.
func refusal(t *testing.T, text []byte) error {
	t.Helper()
	s, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return err
	}
	j, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(j))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(v)
}

// beyondSchema are the files of badFields that the schema accepts: it compares no two fields, and
// neither computes with addresses and durations nor sees how YAML was written.
var beyondSchema = []string{
	"a pool's range", "pools with a name", "pools with an address", "a pool's priority for all",
	"pools without manifests", "merge key", "interface name of a directory",
	"octal", "timeout too short", "range reversed", "host bits", "loopback as source",
	"well-known ports", "ports in node ports", "few ports", "a group of one", "no flows",
	"denied host bits", "denied all", "denied all IPv6", "denied mapped", "denied multicast", "time wait", "heartbeat",
	"long poll", "part of a microsecond", "host link name in use", "host link without room", "host link family twice",
	"host link of a martian", "host link with a martian end", "source address of a martian", "long socket",
	"readers' socket in stateDir", "readers' socket at a long path", "metrics in the SNAT range",
	"a certificate without its key", "fewer CPUs than workers", "two documents", "interface twice",
	"deferral without timeout", "long timeout", "generic zero-copy",
}

// TestSchemaRefuses: the schema refuses each of badFields whose mistake is in one field.
func TestSchemaRefuses(t *testing.T) {
	names := map[string]bool{}
	for _, b := range badFields {
		names[b.name] = true
		err := refusal(t, []byte(b.file()))
		if accepted := slices.Contains(beyondSchema, b.name); accepted != (err == nil) {
			t.Errorf("%s: %v", b.name, err)
		}
	}
	for _, name := range beyondSchema {
		if !names[name] {
			t.Errorf("there is no file %q", name)
		}
	}
}

// TestSchemaAccepts: every configuration that the tree shows to users, and all fields at once.
func TestSchemaAccepts(t *testing.T) {
	files := examples(t)
	if len(files) < 11 {
		t.Errorf("only %d configurations were found: %v", len(files), slices.Sorted(maps.Keys(files)))
	}
	files["minimal"] = []byte(minimal)
	files["defaults"] = bytes.Replace(DefaultsYAML(), []byte("interfaces: []"), []byte("interfaces: [{name: eth0}]"), 1)
	files["empty fields"] = []byte(minimal + "log:\nnodeName:\nworkers: ~\nproxy: {scheduler: ~, clusterCIDRs: ~}\n")
	files["numbers"] = []byte(minimal + "  queues: 4\ndrain: {timeout: 0}\nproxy: {deniedHostPorts: [22]}\n" +
		"tuning: {frameSize: 4096}\n")
	for name, text := range files {
		if _, err := Parse(text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := refusal(t, text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// block is a block of YAML in a page.
var block = regexp.MustCompile("(?ms)^( *)```yaml\n(.*?)^ *```$")

// examples are the configurations in the tree, whole ones and parts, which are completed.
func examples(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for _, pattern := range []string{
		"testdata/everything.yaml", "../docs/example/*.yaml", "kubeproxy/testdata/*.golden",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range found {
			text, _, _ := bytes.Cut(read(t, file), []byte("\n---\n")) // the notes of a conversion
			if bytes.Contains(text, []byte("kind: "+Kind)) {
				files[file] = text
			}
		}
	}
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		for _, m := range block.FindAllStringSubmatch(string(read(t, page)), -1) {
			if text := whole(m[2]); text != nil {
				files[page+": "+m[2]] = text
			}
		}
	}
	var objects struct {
		Kind string
		Data map[string]string
	}
	for _, doc := range bytes.Split(read(t, "../deploy/manifests/sluice.yaml"), []byte("\n---\n")) {
		if err := yaml.Unmarshal(doc, &objects); err != nil {
			t.Fatal(err)
		}
		if objects.Kind == "ConfigMap" {
			files["manifest"] = []byte(objects.Data["gateway.yaml"])
		}
	}
	return files
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// whole completes a block whose fields are of a configuration, or of the chart's value config; nil
// for another one.
func whole(text string) []byte {
	var fields map[string]any
	if yaml.Unmarshal([]byte(text), &fields) != nil {
		return nil
	}
	if config, ok := fields["config"].(map[string]any); ok {
		fields = config
	}
	known := comments()
	for name := range fields {
		if known[name] == "" && name != "apiVersion" && name != "kind" {
			return nil
		}
	}
	for name, value := range map[string]any{"apiVersion": APIVersion, "kind": Kind,
		"interfaces": []any{map[string]any{"name": "eth0"}}} {
		if fields[name] == nil {
			fields[name] = value
		}
	}
	if fields["kind"] != Kind {
		return nil
	}
	b, err := yaml.Marshal(fields)
	if err != nil {
		return nil
	}
	return b
}

// TestSchemaDescribes: each field has its comment in the schema, fields of list elements too.
func TestSchemaDescribes(t *testing.T) {
	root := newSchema()
	var visit func(path string, s *schema)
	visit = func(path string, s *schema) {
		for name, p := range s.Properties {
			at := join(path, name)
			if p.Description == "" && !slices.Contains(undescribed, at) {
				t.Errorf("%s has no description", at)
			}
			visit(at, p)
		}
		if s.Items != nil {
			visit(path+"[]", s.Items)
		}
	}
	visit("", root)
	mode := root.Properties["interfaces"].Items.Properties["mode"]
	if want := "how XDP is attached: auto (native where the driver can), native (or refuse to start), generic (any " +
		"device, slower)"; mode.Description != want {
		t.Errorf("interfaces[].mode: %q, want %q", mode.Description, want)
	}
	want := []any{ModeAuto, ModeNative, ModeGeneric, nil}
	if !slices.Equal(mode.Enum, want) || mode.Default != ModeAuto {
		t.Errorf("interfaces[].mode: %v, by default %v", mode.Enum, mode.Default)
	}
	ring := root.Properties["tuning"].Properties["ringSize"]
	if want := "Descriptors of each ring of a socket, a power of two from 64 to 32768."; !strings.HasPrefix(
		ring.Description, want) || ring.Default != 2048 || len(ring.Enum) != 11 {
		t.Errorf("tuning.ringSize: %+v", ring)
	}
	drain := root.Properties["drain"].Properties["timeout"]
	if !strings.HasSuffix(drain.Description, " From 0s to 24h.") || drain.Default != Duration(10*time.Second) {
		t.Errorf("drain.timeout: %+v", drain)
	}
}

// undescribed are fields whose name says everything, or whose comment is the enclosing field's.
var undescribed = []string{
	"apiVersion", "kind", "flows.ipv6", "manifests.directory", "health.address", "metrics.address",
	"metrics.tls.certFile", "metrics.tls.keyFile", "group.port", "group.tls.certFile", "group.tls.keyFile",
	"group.tls.caFile", "kubernetes.enabled", "kubernetes.daemonSet", "addressPools[].serviceAllocation",
}
