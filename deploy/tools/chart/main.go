// Command chart lints the chart and renders the committed manifests from it, or with -check
// compares them with its output: the gateway, and separately the parts that the chart's default
// values leave out: the controller, the announcer, the doctor and the nodes' ends of the tunnel. It
// also writes docs/alerts.md from the chart's alerts, the chart's dashboards from dashboards.yaml,
// and the configuration's schema into the chart's schema of values. With -values it renders a
// release with other values.
package main

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/releaseutil"
)

// The release whose manifests are rendered, and the oldest Kubernetes version that all parts
// support.
const (
	release    = "sluice"
	namespace  = "sluice-system"
	kubernetes = "v1.31.0"
)

func main() {
	dir := flag.String("chart", "../chart", "directory of the chart")
	var out outputs
	flag.StringVar(&out.manifests, "manifests", "../manifests/sluice.yaml", "file to which the chart is rendered")
	flag.StringVar(&out.alerts, "alerts", "../../docs/alerts.md", "page to which the chart's alerts are written")
	flag.StringVar(&out.dashboards, "dashboards", "../chart/files/dashboards", "directory of the dashboards made")
	check := flag.Bool("check", false, "write nothing; fail if a file differs from the chart")
	values := flag.String("values", "", "file with values that replace the chart's own")
	flag.Parse()
	if err := run(*dir, out, *values, *check); err != nil {
		log.Fatal(err)
	}
	done := "rendered into"
	if *check {
		done = "it equals"
	}
	fmt.Printf("the chart in %s has no errors; %s %s\n", fromRoot(*dir), done, fromRoot(out.manifests))
}

// fromRoot returns a path relative to the repository's root, two directories above this module.
func fromRoot(path string) string {
	if rel, ok := strings.CutPrefix(filepath.ToSlash(path), "../"); ok {
		return filepath.Join("deploy", rel)
	}
	return path
}

// outputs are the files that are made from the chart, and the directory of its dashboards.
type outputs struct{ manifests, alerts, dashboards string }

func run(dir string, out outputs, valuesFile string, check bool) error {
	if err := putSchema(dir, check || valuesFile != ""); err != nil {
		return err
	}
	if err := lintChart(dir); err != nil {
		return err
	}
	var values map[string]any
	if valuesFile != "" {
		var err error
		if values, err = chartutil.ReadValuesFile(valuesFile); err != nil {
			return err
		}
	}
	got, err := Manifests(dir, values)
	if err != nil {
		return err
	}
	if err := put(dir, out.manifests, got, check); err != nil || valuesFile != "" {
		return err
	}
	alerts, err := readAlerts(dir)
	if err != nil {
		return err
	}
	if err := put(dir, out.alerts, alerts.page(), check); err != nil {
		return err
	}
	if err := putDashboards(dir, out.dashboards, check); err != nil {
		return err
	}
	for _, p := range besides {
		if got, err = p.manifests(dir); err != nil {
			return err
		}
		if err := put(dir, filepath.Join(filepath.Dir(out.manifests), p.name+".yaml"), got, check); err != nil {
			return err
		}
	}
	return nil
}

// part is a part beside the gateway, which the chart renders with some values.
type part struct {
	name      string
	values    map[string]any
	how       string // the comment on the values
	when      string // the comment on the order; empty: after the gateway
	adapt     string
	templates []string
}

var besides = []part{
	{"controller", enabled("controller"), "controller.enabled", "", "the image",
		[]string{"controller.yaml", "addresspools.yaml"}},
	{"announcer", enabled("announcer"), "announcer.enabled", "", "the image",
		[]string{"announcer.yaml", "announcements.yaml", "addresspools.yaml"}},
	{"doctor", enabled("doctor"), "doctor.enabled", "Apply it before sluice.yaml, in a namespace that admits " +
		"privileged pods.", "the image, and the interfaces in the ConfigMap", []string{"doctor.yaml"}},
	{"node", map[string]any{
		"nodeTunnel": map[string]any{"gateways": []any{"10.0.1.2", "10.0.1.3"}},
		"config":     map[string]any{"directReturn": map[string]any{"vni": 20942}},
	}, "nodeTunnel.gateways", "", "the image, --gateway, and --vni to directReturn.vni of the gateways",
		[]string{"node.yaml"}},
}

func enabled(part string) map[string]any {
	return map[string]any{part: map[string]any{"enabled": true}}
}

// put writes a file, or compares it.
func put(dir, file string, got []byte, check bool) error {
	if !check {
		return os.WriteFile(file, got, 0o644)
	}
	want, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s differs from the output of the chart in %s; run `make -C deploy chart`", file, dir)
	}
	return nil
}

// lintChart fails for errors and warnings; it ignores recommendations (an icon).
func lintChart(dir string) error {
	var errs []error
	for _, m := range lint.All(dir, map[string]any{}, namespace, true).Messages {
		if m.Severity >= support.WarningSev {
			errs = append(errs, m)
		}
	}
	return errors.Join(errs...)
}

// Manifests renders the chart with values that replace its own, in the order in which Helm
// installs, after a Namespace that admits pods with the host's network.
func Manifests(dir string, values map[string]any) ([]byte, error) {
	c, err := loader.LoadDir(dir)
	if err != nil {
		return nil, err
	}
	list, err := render(c, values)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Rendered from deploy/chart with its default values by `make -C deploy chart`. Do not edit.\n"+
		"# Adapt the image, and the interfaces in the ConfigMap.\n"+
		"apiVersion: v1\nkind: Namespace\nmetadata:\n  name: %s\n  labels:\n    pod-security.kubernetes.io/enforce: "+
		"privileged\n", namespace)
	for _, m := range list {
		fmt.Fprintf(&b, "---\n%s\n", strings.TrimSpace(m.Content))
	}
	return b.Bytes(), nil
}

// manifests renders the chart's objects for the part, into the gateway's namespace.
func (p *part) manifests(dir string) ([]byte, error) {
	c, err := loader.LoadDir(dir)
	if err != nil {
		return nil, err
	}
	list, err := render(c, p.values)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Rendered from deploy/chart with %s by `make -C deploy chart`. Do not edit.\n"+
		"# %s Adapt %s.\n", p.how, cmp.Or(p.when, "Apply it after sluice.yaml, which has the namespace."), p.adapt)
	separator := ""
	for _, m := range list {
		if slices.Contains(p.templates, filepath.Base(m.Name)) {
			fmt.Fprintf(&b, "%s%s\n", separator, strings.TrimSpace(m.Content))
			separator = "---\n"
		}
	}
	if separator == "" {
		return nil, fmt.Errorf("the chart renders no %s", p.name)
	}
	return b.Bytes(), nil
}

// templates renders the chart's templates, by name, for a Kubernetes version as reported by its API
// server.
func templates(c *chart.Chart, values map[string]any, kubernetes string) (map[string]string, error) {
	return renderIn(nil, c, values, kubernetes)
}

// renderIn is templates with a cluster in which the function lookup finds objects; nil for none.
// kinds are its API server's additional kinds, as group/version/kind.
func renderIn(
	found engine.ClientProvider, c *chart.Chart, values map[string]any, kubernetes string, kinds ...string,
) (map[string]string, error) {
	cluster := chartutil.DefaultCapabilities.Copy()
	cluster.APIVersions = append(cluster.APIVersions, kinds...)
	cluster.KubeVersion = chartutil.KubeVersion{Version: kubernetes}
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{
		Name: release, Namespace: namespace, Revision: 1, IsInstall: true,
	}, cluster)
	if err != nil {
		return nil, err
	}
	if found != nil {
		return engine.RenderWithClientProvider(c, all, found)
	}
	return engine.Engine{Strict: true}.Render(c, all)
}

func render(c *chart.Chart, values map[string]any) ([]releaseutil.Manifest, error) {
	files, err := templates(c, values, kubernetes)
	if err != nil {
		return nil, err
	}
	for name := range files {
		if strings.HasSuffix(name, ".txt") {
			delete(files, name)
		}
	}
	_, list, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(m releaseutil.Manifest) bool { return strings.TrimSpace(m.Content) == "" }), nil
}
