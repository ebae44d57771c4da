package stateful

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"sluice.dev/sluice/test/bed/memlink"
)

// recorder writes the frames on a pair's wire to a capture, with the pair's time.
type recorder interface {
	WritePacket(ci gopacket.CaptureInfo, data []byte) error
}

// record plays templates on a wire that is captured, and returns the file.
func record(t *testing.T, ng bool, n uint64, damage func(frame []byte) bool, templates ...Template) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "some.pcap")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var w recorder
	if ng {
		g, err := pcapgo.NewNgWriter(f, layers.LinkTypeEthernet)
		if err != nil {
			t.Fatal(err)
		}
		defer g.Flush()
		w = g
	} else {
		p := pcapgo.NewWriter(f)
		if err := p.WriteFileHeader(65536, layers.LinkTypeEthernet); err != nil {
			t.Fatal(err)
		}
		w = p
	}
	p := smallProfile(t, templates...)
	p.CPS = 100 // one after the other
	r, err := newPair(p)
	if err != nil {
		t.Fatal(err)
	}
	r.fault = func(to *memlink.Link, frame []byte) {
		if damage == nil || damage(frame) {
			at := time.Unix(0, int64(r.client.began+r.client.since))
			if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(frame), Length: len(frame)},
				frame); err != nil {
				t.Fatal(err)
			}
		}
		to.Inject(frame)
	}
	play(t, r, n, time.Minute)
	clean(t, r, n)
	return path
}

// TestCaptureRoundTrip: a capture of played templates becomes the same templates.
func TestCaptureRoundTrip(t *testing.T) {
	think := Template{Name: "think", Protocol: ProtocolTCP, Port: 83, Share: 1, Close: Client, Steps: []Step{
		{From: Client, Size: 3000}, {From: Server, Size: 70_000, After: 20 * time.Millisecond},
		{From: Server, Size: 500, After: 40 * time.Millisecond},
		{From: Client, Size: 5, After: 10 * time.Millisecond}, {From: Server, Size: 16},
	}}
	templates := []Template{page(), think, query(), burst()}
	for _, ng := range []bool{false, true} {
		path := record(t, ng, 40, nil, templates...)
		for _, withBytes := range []bool{false, true} {
			var out bytes.Buffer
			if err := FromCapture(&out, path, CaptureConfig{Conversations: 10, Bytes: withBytes}); err != nil {
				t.Fatal(err)
			}
			p, err := Parse("out.yaml", out.Bytes())
			if err != nil {
				t.Fatalf("%v\n%s", err, &out)
			}
			compareTemplates(t, p.Templates, templates, withBytes)
		}
	}
}

// compareTemplates compares by port. The engine rounds think times to milliseconds.
func compareTemplates(t *testing.T, got, want []Template, withBytes bool) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d templates, want %d", len(got), len(want))
	}
	for i := range want {
		w := &want[i]
		k := slices.IndexFunc(got, func(g Template) bool { return g.Port == w.Port && g.Protocol == w.Protocol })
		if k < 0 || len(got[k].Steps) != len(w.Steps) || w.Protocol == ProtocolTCP && got[k].Close != w.Close ||
			got[k].Share != 10 {
			t.Errorf("%s came out as %+v", w.Name, got)
			continue
		}
		for j := range w.Steps {
			g, s := &got[k].Steps[j], &w.Steps[j]
			size := s.Size
			if w.Protocol == ProtocolUDP && !withBytes {
				size = max(size, TagBytes)
			}
			apart := (g.After - s.After).Abs()
			if g.From != s.From || g.Size != size || g.Count != max(s.Count, 1) || apart > 3*time.Millisecond {
				t.Errorf("%s, step %d came out as %+v, want %+v", w.Name, j+1, *g, *s)
			}
			if withBytes && s.Bytes != nil && s.Size >= TagBytes && !bytes.Equal(g.Bytes, s.Bytes) {
				t.Errorf("%s, step %d has bytes %q, want %q", w.Name, j+1, g.Bytes, s.Bytes)
			}
		}
	}
}

// TestCapturePartial: a conversation with a hole, or without its beginning, is left out.
func TestCapturePartial(t *testing.T) {
	for name, damage := range map[string]func(*layers.TCP) bool{
		"no SYN":  func(s *layers.TCP) bool { return !s.SYN },
		"no data": func(s *layers.TCP) bool { return len(s.Payload) != defaultMSS && len(s.Payload) != 1460 },
	} {
		path := record(t, false, 5, func(frame []byte) bool {
			tcp, ok := gopacket.NewPacket(frame, layers.LayerTypeEthernet,
				gopacket.Default).TransportLayer().(*layers.TCP)
			return !ok || damage(tcp)
		}, page())
		var out bytes.Buffer
		if err := FromCapture(&out, path, DefaultCapture()); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), "- name: tcp") {
			t.Errorf("%s: made into\n%s", name, &out)
		}
	}
}

func TestNoCapture(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path, []byte("this is none"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := FromCapture(&bytes.Buffer{}, path, DefaultCapture())
	if err == nil || !strings.Contains(err.Error(), "neither pcap nor pcapng") {
		t.Error(err)
	}
}
