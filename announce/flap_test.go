package announce_test

import (
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/bgp"
	"sluice.dev/sluice/announce/pulse"
)

// source has a pool, an advertisement, a peer that never answers, and the labels of Services.
type source struct {
	announce.Source
	objects announce.Objects
}

func (s *source) Objects() (*announce.Objects, string) { return &s.objects, "" }

func newSource(services int) *source {
	object := func(kind, name string, spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "sluice.dev/v1alpha1", "kind": kind,
			"metadata": map[string]any{"name": name, "uid": name}, "spec": spec}}
	}
	s := &source{objects: announce.Objects{Services: map[string]labels.Set{}, UIDs: map[string]string{},
		Kinds: []*unstructured.Unstructured{
			object("AddressPool", "public", map[string]any{"addresses": []any{"10.0.0.0/8"}}),
			object("BGPPeer", "tor", map[string]any{"myASN": int64(64500), "peerASN": int64(64501),
				"peerAddress": "127.0.0.77"}),
			object("BGPAdvertisement", "all", map[string]any{}),
		}}}
	for i := range services {
		s.objects.Services[fmt.Sprintf("shop/web%d", i)] = labels.Set{"app": "web"}
	}
	return s
}

// serving returns the state of a gateway that serves a number of VIPs.
func serving(vips int) *pulse.State {
	s := &pulse.State{PID: 1, Phase: pulse.Serving}
	for i := range vips {
		s.VIPs = append(s.VIPs, pulse.VIP{Address: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}),
			Services: []pulse.Service{{Namespace: "shop", Name: fmt.Sprintf("web%d", i), Local: true, Usable: true}}})
	}
	return s
}

// flap returns a State in which one VIP has an endpoint, or not.
func flap(s *pulse.State, i int, usable bool) *pulse.State {
	next := *s
	next.VIPs = slices.Clone(s.VIPs)
	next.VIPs[i].Services = slices.Clone(s.VIPs[i].Services)
	next.VIPs[i].Services[0].Usable = usable
	return &next
}

// cpuTime returns the processor time that this process has used.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkFlap: one of 10,000 VIPs comes or goes. There are at most ten flaps per second, because
// a gateway sends changes every 100 ms.
func BenchmarkFlap(b *testing.B) {
	const vips = 10_000
	speaker := bgp.New(bgp.Config{Log: slog.New(slog.DiscardHandler), RouterID: netip.MustParseAddr("10.9.9.9")})
	defer speaker.Close()
	l := announce.New(announce.Config{Log: slog.New(slog.DiscardHandler), Source: newSource(vips),
		Speakers: []announce.Speaker{speaker}, State: filepath.Join(b.TempDir(), "announced.json")})
	s := serving(vips)
	now := time.Now()
	l.See(pulse.Sight{State: s, At: now}, now)
	before := cpuTime(b)
	for i := 0; b.Loop(); i++ {
		next := flap(s, 77, i%2 == 1)
		now = now.Add(pulse.Every)
		l.See(pulse.Sight{State: next, At: now, Since: s, Changed: []netip.Addr{s.VIPs[77].Address}}, now)
		s = next
	}
	each := (cpuTime(b) - before) / time.Duration(b.N)
	b.ReportMetric(float64(each.Nanoseconds()), "cpu-ns/op")
	b.ReportMetric(100*each.Seconds()/pulse.Every.Seconds(), "%CPU")
}
