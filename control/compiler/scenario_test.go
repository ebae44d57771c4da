package compiler_test

import (
	"bytes"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/files"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

var update = flag.Bool("update", false, "write what was got into testdata")

// A scenario is a txtar file: what it shows, a gateway, and steps. Step N applies
// the manifests N/*.yaml together (a file of one line "gone" is deleted), under a new
// gateway if there is an N/gateway, then the commands in N/do, and must lead to N/want.
func TestScenarios(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			changed := runScenario(t, a)
			if changed && *update {
				if err := os.WriteFile(path, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

type scenario struct {
	tracker  *tracker.Tracker
	compiler *compiler.Compiler
	objects  map[string][]objects.ObjectID // by file
	errors   []string
}

func runScenario(t *testing.T, a *txtar.Archive) (changed bool) {
	s := &scenario{tracker: tracker.New(), objects: map[string][]objects.ObjectID{}}
	s.compiler = compiler.New(parseGateway(t, section0(a, "gateway")))
	for step := 1; ; step++ {
		dir := strconv.Itoa(step) + "/"
		at := slices.IndexFunc(a.Files, func(f txtar.File) bool { return f.Name == dir+"want" })
		if at < 0 {
			if step == 1 {
				t.Fatal("no 1/want")
			}
			return changed
		}
		got := s.step(t, a, dir)
		if want := string(a.Files[at].Data); got != want {
			changed = true
			if !*update {
				t.Errorf("step %d\ngot:\n%s\nwant:\n%s", step, got, want)
			}
			a.Files[at].Data = []byte(got)
		}
	}
}

func section0(a *txtar.Archive, name string) string {
	for _, f := range a.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

func (s *scenario) step(t *testing.T, a *txtar.Archive, dir string) string {
	var batch tracker.Batch
	s.errors = nil
	for _, f := range a.Files {
		if name, ok := strings.CutPrefix(f.Name, dir); ok && filepath.Ext(name) == ".yaml" {
			s.apply(name, f.Data, &batch)
		}
	}
	s.tracker.Apply(&batch)
	configured := &steer.Change{}
	if gateway := section0(a, dir+"gateway"); gateway != "" {
		_, _, configured = s.compiler.Configure(parseGateway(t, gateway))
	}
	snapshot, problems, steer := s.compiler.Compile(s.tracker.Changes())
	if do := section0(a, dir+"do"); do != "" {
		for line := range strings.Lines(do) {
			s.do(t, strings.Fields(line))
		}
		snapshot, problems, steer = s.compiler.Compile(&objects.Changes{})
	}
	full, fullProblems, _ := s.compiler.Full(s.tracker.State())
	if inc, all := render(snapshot, problems), render(full, fullProblems); inc != all {
		t.Errorf("%s incremental differs from full:\n%s\nfull:\n%s", dir, inc, all)
	}
	var b strings.Builder
	b.WriteString(render(snapshot, s.tracker.Locate(problems)))
	section(&b, "kernel opens", append(renderSteer(&configured.Open), renderSteer(&steer.Open)...))
	section(&b, "kernel closes", append(renderSteer(&configured.Close), renderSteer(&steer.Close)...))
	section(&b, "errors", s.errors)
	return b.String()
}

// apply does to one file what the watcher does.
func (s *scenario) apply(name string, data []byte, batch *tracker.Batch) {
	from := objects.Source{Kind: "test", Path: name}
	if string(bytes.TrimSpace(data)) == "gone" {
		for _, id := range s.objects[name] {
			batch.Delete(from, id)
		}
		batch.Report(from, nil)
		return
	}
	ids, err := files.Decode(from, data, batch)
	if err != nil {
		s.errors = append(s.errors, fmt.Sprintf("%s: %v", name, err))
		return
	}
	for _, id := range s.objects[name] {
		if !slices.Contains(ids, id) {
			batch.Delete(from, id)
		}
	}
	s.objects[name] = ids
}

func (s *scenario) do(t *testing.T, words []string) {
	if len(words) == 3 {
		s.check(words)
		return
	}
	if len(words) != 2 {
		t.Fatalf("do: %q", words)
	}
	d := compiler.Drain{}
	if ap, err := netip.ParseAddrPort(words[1]); err == nil {
		d = compiler.Drain{Addr: header.AddrFrom(ap.Addr()), Port: ap.Port()}
	} else {
		d.Addr = header.AddrFrom(netip.MustParseAddr(words[1]))
	}
	err := map[string]func(compiler.Drain) error{"drain": s.compiler.Drain, "undrain": s.compiler.Undrain}[words[0]](d)
	if err != nil {
		s.errors = append(s.errors, err.Error())
	}
}

// check does "down", "up" or "slow", in the first tenth of a slow start, with a TCP port of a
// Service of the namespace default (SERVICE:PORT) and an endpoint.
func (s *scenario) check(words []string) {
	service, port, _ := strings.Cut(words[1], ":")
	at := netip.MustParseAddrPort(words[2])
	h := compiler.EndpointHealth{Endpoint: compiler.Endpoint{Namespace: "default", Service: service, PortName: port,
		Proto: header.ProtoTCP, Addr: header.AddrFrom(at.Addr()), Port: at.Port()}, Down: words[0] == "down"}
	if words[0] == "slow" {
		h.SlowStart = 1
	}
	s.compiler.SetHealth([]compiler.EndpointHealth{h})
}

// parseGateway reads lines of "name value...": node, address, local, snat, snat-ports
// FIRST COUNT, cluster-ips, cluster-cidr, masquerade-all, strict-source-ranges, scheduler,
// external-ips, other, deny FIRST COUNT.
func parseGateway(t *testing.T, text string) (cfg compiler.Config) {
	for line := range strings.Lines(text) {
		w := strings.Fields(line)
		switch w[0] {
		case "node":
			cfg.NodeName = w[1]
		case "address":
			cfg.NodeAddresses = append(cfg.NodeAddresses, header.AddrFrom(netip.MustParseAddr(w[1])))
		case "local":
			cfg.LocalAddresses = append(cfg.LocalAddresses, header.AddrFrom(netip.MustParseAddr(w[1])))
		case "snat":
			if a := netip.MustParseAddr(w[1]); a.Is4() {
				cfg.SNAT4 = append(cfg.SNAT4, header.AddrFrom(a))
			} else {
				cfg.SNAT6 = append(cfg.SNAT6, header.AddrFrom(a))
			}
		case "snat-ports":
			first, _ := strconv.Atoi(w[1])
			count, _ := strconv.Atoi(w[2])
			cfg.SNATPorts = services.PortRange{First: uint16(first), Count: uint16(count)}
		case "other":
			cfg.OtherAddresses = append(cfg.OtherAddresses, header.AddrFrom(netip.MustParseAddr(w[1])))
		case "deny":
			first, _ := strconv.Atoi(w[1])
			count, _ := strconv.Atoi(w[2])
			cfg.DeniedHostPorts = append(cfg.DeniedHostPorts,
				services.PortRange{First: uint16(first), Count: uint16(count)})
		case "external-ips":
			cfg.ExternalIPs = append(cfg.ExternalIPs, netip.MustParsePrefix(w[1]))
		case "direct":
			cfg.TunnelPort = 4789
		case "cluster-ips":
			cfg.ClusterIPs = true
		case "cluster-cidr":
			cfg.ClusterCIDRs = append(cfg.ClusterCIDRs, netip.MustParsePrefix(w[1]))
		case "masquerade-all":
			cfg.MasqueradeAll = true
		case "strict-source-ranges":
			cfg.StrictSourceRanges = true
		case "scheduler":
			cfg.Scheduler, _ = services.ParseScheduler(w[1])
		default:
			t.Fatalf("gateway: %q", line)
		}
	}
	return cfg
}
