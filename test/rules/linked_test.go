package rules

import (
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// laboratory are the modules that only measurements, tests and tools need. None is linked into the
// gateway, whose process has the node's network in its hands: what is not there needs no updates.
var laboratory = []string{
	"github.com/HdrHistogram/hdrhistogram-go",  // latencies
	"github.com/asavie/xdp",                    // the baseline
	"github.com/google/go-cmp",                 // tests
	"github.com/santhosh-tekuri/jsonschema/v6", // tests
	"golang.org/x/tools",                       // checks of sources
	"google.golang.org/grpc",                   // tests; the announcer has it by gobgp
	"gonum.org/v1/plot",                        // plots
}

// others are the modules that only sluice-controller and sluice-announcer need.
var others = []string{
	"github.com/mdlayher/packet", // ARP, neighbour discovery
	"github.com/osrg/gobgp/v4",   // BGP
}

// drawing lists parts of the paths of modules that draw or compute plots.
var drawing = []string{"gonum.org/", "plot", "freetype", "/gg", "/gofpdf", "/fonts", "svg", "golang.org/x/image"}

// forbidden returns why a module may not be linked into the gateway, or nothing.
func forbidden(module string) string {
	if slices.Contains(laboratory, module) {
		return "is the laboratory's"
	}
	if slices.Contains(others, module) {
		return "is the controller's or the announcer's"
	}
	for _, part := range drawing {
		if strings.Contains(module, part) {
			return "is for plots: its path has " + part
		}
	}
	return ""
}

// The modules of a built gateway, as go version -m lists them, are none of the laboratory's.
func TestNoLaboratoryIsLinked(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "sluice")
	c := exec.Command("go", "build", "-o", binary, "./cmd/sluice")
	c.Dir = "../.."
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	linked := map[string]bool{}
	for _, m := range info.Deps {
		linked[m.Path] = true
		if why := forbidden(m.Path); why != "" {
			t.Errorf("%s is linked into sluice, and %s", m.Path, why)
		}
	}
	if !linked["github.com/cilium/ebpf"] {
		t.Errorf("the binary does not name its modules: %v", info.Deps)
	}
	// A module that go.mod requires is for one of the two, so that a new one of the laboratory's
	// is named above.
	for _, path := range required(t) {
		if !linked[path] && forbidden(path) == "" {
			t.Errorf("%s is required by go.mod and not linked into sluice: name it in laboratory or "+
				"others", path)
		}
	}
}

// required returns the modules that go.mod requires directly.
func required(t *testing.T) (paths []string) {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-json=Path,Main,Indirect", "all").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var m struct {
			Path           string
			Main, Indirect bool
		}
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if !m.Main && !m.Indirect {
			paths = append(paths, m.Path)
		}
	}
	if len(paths) < 10 {
		t.Fatalf("go.mod requires %v only", paths)
	}
	return paths
}
