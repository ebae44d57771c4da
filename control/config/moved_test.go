package config

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// fields lists the paths of the fields of a file and the line of each; those of list elements
// have the path of the list and of the field, such as interfaces.mode.
func fields(t *testing.T, text []byte) (paths []string, lines map[string]int) {
	t.Helper()
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	lines = map[string]int{}
	var walk func(path string, n *yaml.Node)
	walk = func(path string, n *yaml.Node) {
		switch {
		case n.Kind == yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				at := join(path, n.Content[i].Value)
				lines[at] = n.Content[i].Line
				walk(at, n.Content[i+1])
			}
		case n.Kind == yaml.SequenceNode && len(n.Content) > 0 && n.Content[0].Kind == yaml.MappingNode:
			walk(path, n.Content[0])
		default:
			paths = append(paths, path)
		}
	}
	walk("", doc.Content[0])
	return paths, lines
}

func oldDefaults(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "defaults-0.0.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// settings lists every field that a file may have, without apiVersion and kind, and with the
// fields of an interface in place of the list.
func settings(t *testing.T) []string {
	t.Helper()
	c := Default()
	c.Interfaces = make([]Interface, 1)
	c.Interfaces[0].setDefaults()
	text, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	paths, _ := fields(t, text)
	return slices.DeleteFunc(paths, func(p string) bool { return p == "apiVersion" || p == "kind" })
}

// TestNumberOfSettings: one more is a decision; a constant or a derived value may do.
func TestNumberOfSettings(t *testing.T) {
	old, _ := fields(t, oldDefaults(t))
	if got, want := len(old)-2, 80; got != want {
		t.Errorf("version 0.0 had %d settings, want %d", got, want)
	}
	if got, want := settings(t), 83; len(got) != want {
		t.Errorf("there are %d settings, want %d: %v", len(got), want, got)
	}
}

// TestMoved: each field of version 0.0 that is gone is refused with its line and with what is in
// its place; no other field of 0.0 is.
func TestMoved(t *testing.T) {
	want := map[string]string{
		"frames.size":      "is now tuning.frameSize",
		"frames.perQueue":  "is now derived: two frames for each descriptor of tuning.ringSize",
		"rings.rx":         "is now tuning.ringSize, the size of all four rings of a socket",
		"rings.tx":         "is now tuning.ringSize, the size of all four rings of a socket",
		"rings.fill":       "is now tuning.ringSize, the size of all four rings of a socket",
		"rings.completion": "is now tuning.ringSize, the size of all four rings of a socket",

		"workerNice":            "is now tuning.workerNice",
		"sockets.spin":          "is now tuning.spin; waiting chooses it",
		"sockets.spinAsWorked":  "is now derived: true on CPUs where packets arrive, and with waiting: shared",
		"sockets.coalesce":      "is now tuning.coalesce; waiting chooses it",
		"sockets.sleep":         "is now tuning.sleep",
		"proxy.affinityClients": "is now tuning.affinityClients",
		"heartbeat.passAfter":   "is now tuning.passAfter",
		"fragments.contexts":    "is now tuning.fragments",
		"fragments.held":        "is now derived: a quarter of tuning.fragments, at most tuning.ringSize and 4096",
		"fragments.timeout":     "is now a constant, 1s, because a sender sends all fragments of a datagram at once",
		"icmp.ratePerSecond":    "is now tuning.icmpRate",
		"icmp.burst":            "is now derived: a twentieth of tuning.icmpRate, as in the kernel",
		"kubernetes.hold":       "is now kubernetes.staleEndpointTimeout",
		"statusSocket":          "is now derived: status.sock in stateDir",
		"hostLink.enabled":      "is now derived: true unless hostLink.addresses is []",
		"hostLink.name":         "is now tuning.hostLinkName, with 0 behind it",
		"hostLink.peer":         "is now tuning.hostLinkName, with 1 behind it",
		"hostLink.procSys": "is now a constant, /proc/sys, or /host/proc/sys where that is read-only, because " +
			"that is where the chart mounts it",
		"flows.halfOpenShare": "is now a constant, 0.125, because a larger table (flows.ipv4, flows.ipv6) has room " +
			"for more of them",
		"proxy.retryOther": "is now a constant, true, because a client whose backend does not answer is lost otherwise",

		"flows.timeouts.timeWaitBackend": "is now tuning.timeWaitBackend",
		"flows.timeouts.synSent": "is now a constant of flows.profile, default: 10s, rfc: 4m, because it " +
			"bounds what a flood leaves behind",
		"flows.timeouts.synReceived": "is now a constant of flows.profile, default: 30s, rfc: 4m, because it " +
			"bounds what a flood leaves behind",
		"flows.timeouts.lastAck": "is now a constant of flows.profile, default: 30s, rfc: 4m, because only " +
			"repetitions of a FIN are waited for",
		"flows.timeouts.timeWaitClient": "is now a constant of flows.profile, default: 5s, rfc: 4m, because only " +
			"repetitions of the last ACK are waited for",
		"flows.timeouts.reset": "is now a constant of flows.profile, default: 10s, rfc: 4m, because " +
			"nothing is expected after it",
		"flows.timeouts.resetEstablished": "is now a constant of flows.profile, default: 4m, rfc: 4m, because RFC " +
			"7857 says it; a forged RST must not end a flow",
		"flows.timeouts.icmp": "is now a constant of flows.profile, default: 1m, rfc: 1m, because RFC 5508 says it",
		"flows.timeouts.udpIdle": "is now a constant of flows.profile, default: 2m, rfc: 2m, because " +
			"it counts only when the table is full: raise flows.ipv4 or flows.ipv6",
	}
	text := oldDefaults(t)
	paths, lines := fields(t, text)
	_, err := ParseFile("gw.yaml", text)
	if err == nil {
		t.Fatal("the defaults of version 0.0 are accepted")
	}
	var expected []string
	for _, path := range paths {
		if problem, gone := want[path]; gone {
			expected = append(expected, fmt.Sprintf("gw.yaml:%d: %s: %s", lines[path], path, problem))
			delete(want, path)
		} else if !slices.Contains(settings(t), path) && path != "apiVersion" && path != "kind" {
			t.Errorf("%s was a field of version 0.0, is none, and the test does not say what is in its place", path)
		}
	}
	for path := range want {
		t.Errorf("%s was no field of version 0.0", path)
	}
	if got := strings.Split(err.Error(), "\n"); !slices.Equal(got, expected) {
		t.Errorf("refused with\n%s\nwant\n%s", err, strings.Join(expected, "\n"))
	}
}

// TestMovedOneByOne: a file that has one of them only is refused, too, wherever it says so.
func TestMovedOneByOne(t *testing.T) {
	for path, problem := range moved {
		text := minimal
		parts := strings.Split(path, ".")
		for depth, name := range parts {
			text += strings.Repeat("  ", depth) + name + ":\n"
		}
		want := fmt.Sprintf("gw.yaml:%d: %s: %s", 4+len(parts), path, problem)
		if got := problems(t, text); len(got) != 1 || got[0] != want {
			t.Errorf("%s alone: %q, want %q", path, got, want)
		}
	}
	for name, c := range map[string]struct{ text, want string }{
		"group without fields": {"rings:",
			"gw.yaml:5: rings: is no group of fields any more: completion is now tuning.ringSize"},
		"group that is empty": {"rings: {}",
			"gw.yaml:5: rings: is no group of fields any more: completion is now tuning.ringSize"},
		"group as a list": {"rings: [1]",
			"gw.yaml:5: rings: is no group of fields any more: completion is now tuning.ringSize"},
		"misspelt field of the group": {"rings: {txx: 1}",
			"gw.yaml:5: rings.txx: is no known field, and rings is no group of fields any more"},
	} {
		if got := problems(t, minimal+c.text+"\n"); len(got) != 1 || !strings.HasPrefix(got[0], c.want) {
			t.Errorf("%s: %q, want %s", name, got, c.want)
		}
	}
}

// TestMovedNamesExist: what a message names is a field.
func TestMovedNamesExist(t *testing.T) {
	all := settings(t)
	for path, problem := range moved {
		if slices.Contains(all, path) {
			t.Errorf("%s has moved and is a field", path)
		}
		for _, name := range regexp.MustCompile(`\b[a-z]\w+(\.[a-z]\w+)+\b`).FindAllString(problem, -1) {
			if name != "status.sock" && !slices.Contains(all, name) &&
				!slices.ContainsFunc(all, func(s string) bool { return strings.HasPrefix(s, name+".") }) {
				t.Errorf("%s: the message names %s, which is no field", path, name)
			}
		}
	}
}

// TestEffectiveDefaults: what a gateway runs by without a word in its file is what version 0.0
// had as defaults, wherever it comes from now. But for room for fragments, of which there is more.
func TestEffectiveDefaults(t *testing.T) {
	c := Default()
	ours, kernels := c.Tuning.HostLinkEnds()
	for was, is := range map[string]any{
		"frames.size auto":      c.Tuning.FrameSize,
		"frames.perQueue 4096":  c.Tuning.FramesPerQueue(),
		"rings.rx 2048":         c.Tuning.RingSize,
		"rings.tx 2048":         c.Tuning.RingSize,
		"rings.fill 2048":       c.Tuning.RingSize,
		"rings.completion 2048": c.Tuning.RingSize,

		"workerNice 0":                         c.Tuning.WorkerNice,
		"proxy.affinityClients 262144":         c.Tuning.AffinityClients,
		"heartbeat.passAfter 30s":              c.Tuning.PassAfter,
		"icmp.ratePerSecond 1000":              c.Tuning.ICMPRate,
		"icmp.burst 50":                        c.Tuning.ICMPBurst(),
		"statusSocket /run/sluice/status.sock": c.StatusSocket(),
		"hostLink.enabled true":                c.HostLink.Enabled(),
		"kubernetes.hold 0s":                   c.Kubernetes.StaleEndpointTimeout,
		"hostLink.name sluice0":                ours,
		"hostLink.peer sluice1":                kernels,
		"flows.timeouts.timeWaitBackend 1m":    c.Tuning.TimeWaitBackend,
	} {
		path, value, _ := strings.Cut(was, " ")
		if got := fmt.Sprint(is); got != value {
			t.Errorf("%s of version 0.0 is %s now, was %s", path, got, value)
		}
		if !strings.Contains(string(oldDefaults(t)), path[strings.LastIndex(path, ".")+1:]+": "+value+"\n") {
			t.Errorf("%s was not %s in version 0.0", path, value)
		}
	}
}
