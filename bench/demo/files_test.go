package demo

import (
	"bytes"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/control/files"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/test/bed/topo"
)

// The gateway decodes the manifests, and the services have the addresses that the demo uses.
func TestManifestsHaveTheDemosAddresses(t *testing.T) {
	paths, err := fs.Glob(manifests, "manifests/*.yaml")
	if err != nil || len(paths) != 4 {
		t.Fatalf("%v: %v", paths, err)
	}
	var at []netip.AddrPort
	for _, path := range paths {
		text, err := manifests.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var batch tracker.Batch
		if ids, err := files.Decode(objects.Source{Kind: files.Kind, Path: path}, text, &batch); err != nil ||
			len(ids) == 0 {
			t.Errorf("%s: %v, %v", path, ids, err)
		}
		at = append(at, addresses(t, text)...)
	}
	want := []netip.AddrPort{webVIP4, webVIP6, webExt4, webExt6, echoVIP4, echoVIP6, localVIP4, localVIP6}
	slices.SortFunc(at, netip.AddrPort.Compare)
	slices.SortFunc(want, netip.AddrPort.Compare)
	if !slices.Equal(at, want) {
		t.Errorf("manifests have %v, the demo asks %v", at, want)
	}
}

// addresses are the addresses of a manifest's service, if it has one.
func addresses(t *testing.T, text []byte) (at []netip.AddrPort) {
	t.Helper()
	document, _, _ := bytes.Cut(text, []byte("\n---\n"))
	var s corev1.Service
	if err := yaml.Unmarshal(document, &s); err != nil {
		t.Fatal(err)
	}
	if s.Kind != "Service" {
		return nil
	}
	ips := slices.Clone(s.Spec.ExternalIPs)
	for _, i := range s.Status.LoadBalancer.Ingress {
		ips = append(ips, i.IP)
	}
	for _, ip := range ips {
		at = append(at, netip.AddrPortFrom(netip.MustParseAddr(ip), uint16(s.Spec.Ports[0].Port)))
	}
	return at
}

func host(name, a4, a6 string) *topo.Host {
	return &topo.Host{Name: name, Interfaces: []topo.Interface{{
		Addr4: netip.PrefixFrom(netip.MustParseAddr(a4), 24), Addr6: netip.PrefixFrom(netip.MustParseAddr(a6), 64),
	}}}
}

func TestWebEndpointsOf(t *testing.T) {
	a, b := host("a", "10.0.0.1", "fd00::1"), host("b", "10.0.0.2", "fd00::2")
	for _, tc := range []struct {
		name  string
		hosts []*topo.Host
		want  string
	}{
		{"two", []*topo.Host{a, b}, "10.0.0.1@a 10.0.0.2@b fd00::1@a fd00::2@b"},
		{"one of them", without([]*topo.Host{a, b}, a), "10.0.0.2@b fd00::2@b"},
		{"none", nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text, err := webEndpointsOf(tc.hosts)
			if err != nil {
				t.Fatal(err)
			}
			list, err := parseSlices(text)
			if err != nil || len(list) != 2 {
				t.Fatalf("%d slices: %v", len(list), err)
			}
			var got []string
			for _, s := range list {
				for _, e := range s.Endpoints {
					got = append(got, e.Addresses[0]+"@"+*e.NodeName)
				}
			}
			if strings.Join(got, " ") != tc.want {
				t.Errorf("got %v, want %s", got, tc.want)
			}
			if list[0].Labels["kubernetes.io/service-name"] != "web" {
				t.Errorf("written:\n%s", text)
			}
		})
	}
}

// The changes of act 5 always leave two endpoints, and end with the initial set.
func TestTogglesRestoreTheEndpoints(t *testing.T) {
	is := map[int]bool{0: true, 1: true, 2: true}
	for _, n := range toggled {
		is[n] = !is[n]
		here := 0
		for _, on := range is {
			if on {
				here++
			}
		}
		if here < 2 {
			t.Errorf("%d endpoints are left after %d", here, n)
		}
	}
	if !is[0] || !is[1] || !is[2] || is[3] {
		t.Errorf("endpoints at the end: %v", is)
	}
}
