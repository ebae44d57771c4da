package compiler_test

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/files"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// innocent is a Service that must be served with any other objects beside it.
const innocent = `{apiVersion: v1, kind: Service, metadata: {name: innocent, namespace: innocent, creationTimestamp: "1970-01-01T00:00:01Z"},
  spec: {ipFamilies: [IPv4], ports: [{name: http, port: 80}]}, status: {loadBalancer: {ingress: [{ip: 203.0.113.200}]}}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: innocent, namespace: innocent, labels: {kubernetes.io/service-name: innocent}},
  addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [198.18.0.1]}]}
`

// FuzzManifest reads arbitrary bytes as a manifest beside a good one and compiles
// both. Nothing panics; no address is in the table that packets must not be sent
// to; the good Service is served; every Problem is one line; and the compile
// equals one from nothing, before and after the manifest.
func FuzzManifest(f *testing.F) {
	paths, _ := filepath.Glob("testdata/*.txtar")
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range a.Files {
			if filepath.Ext(file.Name) == ".yaml" {
				f.Add(file.Data)
			}
		}
	}
	f.Add([]byte("apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Node, metadata: {name: gw-1}}]"))
	f.Add([]byte("a: &a [*a, *a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg := controltest.Config()
		cfg.ClusterIPs, cfg.ClusterCIDRs = true, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}
		tr, compiler := tracker.New(), compiler.New(cfg)
		decode := func(name, text string) []objects.ObjectID {
			var batch tracker.Batch
			ids, err := files.Decode(objects.Source{Kind: "test", Path: name}, []byte(text), &batch)
			if err == nil {
				tr.Apply(&batch)
			}
			return ids
		}
		if len(decode("a", innocent)) != 2 {
			t.Fatal("the innocent manifest is not read")
		}
		ids := decode("b", string(data))
		checkCompiled(t, tr, compiler)
		for _, id := range ids {
			tr.Delete(objects.Source{Kind: "test", Path: "b"}, id)
		}
		checkCompiled(t, tr, compiler)
	})
}

func checkCompiled(t *testing.T, tracker *tracker.Tracker, compiler *compiler.Compiler) {
	t.Helper()
	s, problems, _ := compiler.Compile(tracker.Changes())
	full, fullProblems, _ := compiler.Full(tracker.State())
	if got, want := describe(s, problems), describe(full, fullProblems); got != want {
		t.Fatalf("incremental:\n%s\nfull:\n%s", got, want)
	}
	for _, p := range tracker.Locate(problems) {
		if strings.ContainsAny(p.String(), "\n\r") || p.Message == "" {
			t.Fatalf("problem %q", p)
		}
	}
	vip := services.FrontendKey{Addr: header.AddrFrom4([4]byte{203, 0, 113, 200}), Port: 80, Proto: header.ProtoTCP}
	if f, ok := s.FrontendByKey(vip); !ok || f.Service.Name != "innocent" {
		t.Fatal("the innocent Service is not served")
	} else if b := s.Backend(f.Outside.Set.Pick(1)); b == nil &&
		s.Owned(header.AddrFrom4([4]byte{198, 18, 0, 1})) == 0 {
		t.Fatal("the innocent Service has lost its backend")
	}
	s.Backends(func(b *services.Backend) bool {
		if illegal(b.Addr) || b.Port == 0 || atGateway(s, b) {
			t.Fatalf("backend %+v", *b)
		}
		return true
	})
	s.Frontends(func(f *services.Frontend) bool {
		anyAddr := f.Key.Addr == services.AnyIPv4 || f.Key.Addr == services.AnyIPv6
		if f.Key.Port == 0 || anyAddr != (f.Kind == services.NodePort) || !anyAddr && illegal(f.Key.Addr) {
			t.Fatalf("frontend %+v", *f)
		}
		for _, r := range slices.Concat(f.Outside.Set.Backends, f.Pod.Set.Backends) {
			if b := s.Backend(r); b == nil || b.Flags&services.BackendServing == 0 || b.Proto != f.Key.Proto ||
				b.Addr.Is4() != f.Key.Addr.Is4() {
				t.Fatalf("frontend %+v sends new flows to %+v", *f, b)
			}
		}
		return true
	})
}

// illegal is written apart from the code it checks.
func illegal(a header.Addr) bool {
	ip := a.Netip()
	if ip.Is4() {
		b := ip.As4()
		return b[0] == 0 || b[0] == 127 || b[0]&0xf0 == 224 || b == [4]byte{255, 255, 255, 255} ||
			b[0] == 169 && b[1] == 254
	}
	b := ip.As16()
	return b[0] == 0xff || b[0] == 0xfe && b[1]&0xc0 == 0x80 || ip.String() == "::" || ip.String() == "::1"
}
