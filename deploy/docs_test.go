package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/config"
)

// readDocs returns the pages whose commands and names operators use: all pages except the
// measurements.
func readDocs(t *testing.T) string {
	t.Helper()
	operatorDocs, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range append(operatorDocs, "../README.md") {
		if strings.HasPrefix(filepath.Base(file), "benchmarks") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// Every metric in the docs exists.
func TestDocumentedMetricsExist(t *testing.T) {
	t.Parallel()
	golden, err := os.ReadFile("../serve/metrics/testdata/metrics.golden")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var others string // of controller and announcer, as declared
	for _, file := range []string{"../allocate/metrics.go", "../announce/metrics.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		others += string(text)
	}
	names := regexp.MustCompile(`\b(sluice|kubeproxy)_[a-z0-9_]+[a-z]\b`).FindAllString(readDocs(t), -1)
	if len(names) < 10 {
		t.Fatalf("only %d metrics were found: %v", len(names), names)
	}
	for _, name := range names {
		base := strings.TrimSuffix(name, "_bucket")
		if name != "sluice_worker" && !strings.Contains(string(golden), "\n"+base) && !strings.Contains(string(metrics),
			"`"+base+"`") && !strings.Contains(others, `"`+base+`"`) {
			t.Errorf("%s is no metric", name)
		}
	}
}

// Every configuration field in the docs exists.
func TestDocumentedFieldsExist(t *testing.T) {
	t.Parallel()
	var defaults map[string]any
	if err := yaml.Unmarshal(config.DefaultsYAML(), &defaults); err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, m := range regexp.MustCompile("`([a-zA-Z]+)\\.([a-z][a-zA-Z0-9.]*)`").FindAllStringSubmatch(readDocs(t), -1) {
		section, ok := defaults[m[1]].(map[string]any)
		if !ok || m[0] == "`limits.cpu`" {
			continue // of Kubernetes or of the chart
		}
		for _, name := range strings.Split(m[2], ".") {
			next, ok := section[name]
			if !ok {
				t.Errorf("%s.%s is no field of the configuration", m[1], m[2])
				break
			}
			found++
			section, _ = next.(map[string]any)
		}
	}
	if found < 10 {
		t.Errorf("only %d fields were found", found)
	}
}
