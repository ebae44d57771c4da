package layer2

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/announce/layer2/frame"
	"sluice.dev/sluice/announce/layer2/hello"
	"sluice.dev/sluice/announce/view"
)

// TestRefused: New rejects configurations with a reason.
func TestRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := Config{Log: slog.New(slog.DiscardHandler), Name: "n", Every: DefaultEvery, Silent: DefaultSilent,
		JoinTime: DefaultJoinTime}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Config){
		"hellos is 1ms":     func(c *Config) { c.Every = time.Millisecond },
		"dead after 1":      func(c *Config) { c.Silent = 1 },
		"joining takes 10m": func(c *Config) { c.JoinTime = 10 * time.Millisecond },
		"kept for -1s":      func(c *Config) { c.Return = -time.Second },
		"kept for 1h0m0s":   func(c *Config) { c.Return = time.Hour },
		"254 characters":    func(c *Config) { c.Name = strings.Repeat("n", 254) },
		"no such file":      func(c *Config) { c.KeyFile = path + "0" },
		"line 1 has 5":      func(c *Config) { c.KeyFile = path },
	} {
		c := good
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// Without a key nothing is announced, and VIPs that an L2Advertisement selects have that reason.
func TestWithoutKey(t *testing.T) {
	t.Parallel()
	s, err := New(Config{Log: slog.New(slog.DiscardHandler), Name: "n", Every: DefaultEvery, Silent: DefaultSilent,
		JoinTime: DefaultJoinTime})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	objects := []*unstructured.Unstructured{object(t, "AddressPool", "p", "{addresses: [192.0.2.0/24]}")}
	vip := netip.MustParseAddr("192.0.2.1")
	for _, asked := range []bool{false, true} {
		if asked {
			objects = append(objects, object(t, "L2Advertisement", "a", "{}"))
		}
		w := &announce.World{Gateway: announce.Yes}
		w.Set, _ = new(kinds.Reader).Read(objects)
		w.VIPs = []*announce.VIPVerdict{{VIP: vip, Pool: w.Set.PoolOf(vip), Grade: announce.Yes}}
		s.Apply(w)
		r := s.Report()
		lines := s.Lines(vip)
		if !asked && len(lines) > 0 || asked && (len(lines) != 1 || lines[0].State != view.Not ||
			!strings.Contains(lines[0].Why, "--layer2-key")) || len(r.Peers) > 0 {
			t.Errorf("asked %v: %+v", asked, r)
		}
	}
}

// keyedSpeaker returns a Speaker with a key, and the path of its key file.
func keyedSpeaker(t *testing.T) (s *Speaker, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(strings.Repeat("k", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Log: slog.New(slog.DiscardHandler), Name: "n", KeyFile: path, Every: DefaultEvery,
		Silent: DefaultSilent, JoinTime: DefaultJoinTime})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, path
}

// TestKeyFileRejected: a key file that cannot be used any more is a problem, and the previous keys
// stay in force.
func TestKeyFileRejected(t *testing.T) {
	t.Parallel()
	s, path := keyedSpeaker(t)
	s.list = func([]string) ([]Interface, error) { return nil, nil }
	w := &announce.World{Gateway: announce.Yes}
	w.Set, _ = new(kinds.Reader).Read([]*unstructured.Unstructured{object(t, "L2Advertisement", "a", "{}")})
	keys := s.keys
	for _, text := range []string{"short\n", strings.Repeat("k", 32) + "\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s.Apply(w)
		rejected := slices.ContainsFunc(s.Report().Problems, func(p kinds.Problem) bool {
			return p.Reason == kinds.Unread && strings.Contains(p.Note, "the previous ones stay in force: ")
		})
		if rejected != (text == "short\n") || !s.keys.Equal(keys) {
			t.Errorf("key file %q: %+v", text, s.Report().Problems)
		}
	}
}

// TestInterfacesNotRead: a gateway that fails while the interfaces cannot be read, for example
// because the process is out of descriptors, still gives up its VIPs.
func TestInterfacesNotRead(t *testing.T) {
	t.Parallel()
	s, _ := keyedSpeaker(t)
	s.list = func([]string) ([]Interface, error) {
		networks := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		return []Interface{{Name: "none", Ethernet: true, Networks: networks}}, nil
	}
	vip := netip.MustParseAddr("192.0.2.1")
	w := &announce.World{Gateway: announce.Yes}
	w.Set, _ = new(kinds.Reader).Read([]*unstructured.Unstructured{
		object(t, "AddressPool", "p", "{addresses: [192.0.2.0/24]}"), object(t, "L2Advertisement", "a", "{}"),
	})
	w.VIPs = []*announce.VIPVerdict{{VIP: vip, Pool: w.Set.PoolOf(vip), Grade: announce.Yes}}
	s.Apply(w)
	if !s.plan.Ready || len(s.plan.Links["none"]) != 1 || len(s.Report().Problems) > 0 {
		t.Fatalf("%+v", s.plan)
	}
	s.list = func([]string) ([]Interface, error) { return nil, unix.EMFILE }
	failed := &announce.World{Gateway: announce.No, Set: w.Set,
		VIPs: []*announce.VIPVerdict{{VIP: vip, Pool: w.VIPs[0].Pool, Grade: announce.No}}}
	s.Apply(failed)
	if wishes := s.plan.Links["none"]; s.plan.Ready || len(wishes) != 1 || wishes[0].Grade != announce.No {
		t.Errorf("the gateway has failed: %+v", s.plan)
	}
}

// TestRemovedLinkDelaysNothing: a link whose socket accepts no frame, as behind a switch that
// pauses it, is removed with 200 announcements left to send. Apply does not wait for it, and the
// link ends soon. A new link of the name begins after that.
func TestRemovedLinkDelaysNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _ := keyedSpeaker(t)
		s.config.JoinTime = DefaultSilent * DefaultEvery
		l, err := newLink("lo", &s.config, &s.incarnations, s.keys, func() {})
		if err != nil {
			t.Fatal(err)
		}
		index, _ := l.carrier.up("lo")
		stuck := make(chan struct{}) // closed at the first announcement
		l.sockets = &sockets{index: index, groups: &groups{index: index}}
		l.transmit = func(f outFrame) error {
			select {
			case <-stuck:
			default:
				if frame.MAC(f.b[:6]) == hello.Group {
					return nil
				}
				close(stuck)
			}
			time.Sleep(sendTimeout)
			return fmt.Errorf("write: %w", os.ErrDeadlineExceeded)
		}
		p := &Plan{Ready: true, Serves: true, Links: map[string][]LinkVIP{}}
		for i := range announcedAtOnce {
			p.Links["lo"] = append(p.Links["lo"], LinkVIP{VIP: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}),
				Grade: announce.Yes})
		}
		s.links["lo"] = l
		l.set(p, s.keys, frame.MAC{})
		go l.run()
		<-stuck
		began := time.Now()
		s.replace(&Plan{}, nil)
		if d := time.Since(began); d > 100*time.Millisecond {
			t.Errorf("Apply took %v", d)
		}
		s.replace(p, nil)
		if s.links["lo"] != nil {
			t.Error("a link began before the one of its name has ended")
		}
		<-s.changed
		if d := time.Since(began); d > 5*sendTimeout {
			t.Errorf("the link ended after %v", d)
		}
		s.replace(&Plan{}, nil)
	})
}
