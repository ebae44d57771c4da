package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/internal/trusted"
)

// difference shows where two configurations differ, as their prints do.
func difference(want, got *Configuration) string {
	a, errA := want.YAML()
	b, errB := got.YAML()
	return cmp.Diff(string(a), string(b)) + fmt.Sprint(errors.Join(errA, errB))
}

// minimal is the shortest valid file.
const minimal = `apiVersion: sluice.dev/v1alpha1
kind: GatewayConfiguration
interfaces:
- name: eth0
`

// problems returns the lines of Parse's error.
func problems(t *testing.T, text string) []string {
	t.Helper()
	c, err := ParseFile("gw.yaml", []byte(text))
	if err == nil {
		return nil
	}
	if c != nil {
		t.Errorf("a refused file gave a configuration: %+v", c)
	}
	var errs Errors
	if !errors.As(err, &errs) {
		t.Fatalf("error is a %T, want Errors", err)
	}
	return strings.Split(err.Error(), "\n")
}

// TestNumberOfSettings: one more is a decision; a constant or a derived value may do.
func TestNumberOfSettings(t *testing.T) {
	const notSettings = 2 // apiVersion, kind
	if got, want := len(leaves(Default()))-notSettings, 85; got != want {
		t.Errorf("there are %d settings, want %d", got, want)
	}
}

// badFields gives each rule one file that breaks only it. The text is appended
// to minimal, or replaces it where it starts with apiVersion.
var badFields = []badField{
	{"unknown field", "nodename: x", "gw.yaml:5: nodename: is no known field, did you mean nodeName?"},
	{"unknown nested field", "snat: {portz: 1-2}", "gw.yaml:5: snat.portz: is no known field, did you mean ports?"},
	{"field far from any", "bananas: 1", "gw.yaml:5: bananas: is no known field, the known fields are apiVersion,"},
	{"a pool's address", "addressPools: [{name: p, addresses: [192.0.2.0/24, 192.0.2.1]}]", "gw.yaml:5: " +
		"addressPools[0].addresses[1]: \"192.0.2.1\" is no prefix such as 192.0.2.0/24, and no range such as " +
		"192.0.2.10-192.0.2.20"},
	{"a pool's range", "addressPools: [{name: p, addresses: [192.0.2.9-192.0.2.1]}]", "gw.yaml:5: " +
		"addressPools[0].addresses[0]: range \"192.0.2.9-192.0.2.1\": the first address must not be after"},
	{"a pool without addresses", "addressPools: [{name: p}]",
		"gw.yaml:5: addressPools[0].addresses: is empty, list"},
	{"a pool without a name", "addressPools: [{addresses: [192.0.2.0/24]}]",
		"gw.yaml:5: addressPools[0].name: is missing"},
	{"a pool's unknown field", "addressPools: [{name: p, addresses: [192.0.2.0/24], protocol: bgp}]",
		"gw.yaml:5: addressPools[0].protocol: is no known field"},
	{"pools with a name", "addressPools: [{name: p, addresses: [192.0.2.0/24]}, {name: p, addresses: " +
		"[198.51.100.0/24]}]", "gw.yaml:5: addressPools[1].name: is p, like that of addressPools[0], rename one"},
	{"pools with an address", "addressPools: [{name: p, addresses: [192.0.2.0/24]}, {name: q, addresses: " +
		"[192.0.2.128/25]}]", "gw.yaml:5: addressPools[1].addresses: has 192.0.2.128, like addressPools[0]"},
	{"a pool's priority", "addressPools: [{name: p, addresses: [192.0.2.0/24], serviceAllocation: {priority: -1}}]",
		"gw.yaml:5: addressPools[0].serviceAllocation.priority: is -1, choose 0 or more"},
	{"a pool's priority for all", "addressPools: [{name: p, addresses: [192.0.2.0/24], serviceAllocation: " +
		"{priority: 1}}]", "gw.yaml:5: addressPools[0].serviceAllocation.priority: is 1 without namespaces"},
	{"pools without manifests", "kubernetes: {enabled: true}\nmanifests: {directory: ''}\naddressPools: " +
		"[{name: p, addresses: [192.0.2.0/24]}]", "gw.yaml:7: addressPools: is for Services in manifests, but"},
	{"given twice", "workers: 1\nworkers: 2", "gw.yaml:6: workers: is given twice, keep one"},
	{"mapping for scalar", "workers: {a: 1}", "gw.yaml:5: workers: must be a single value, not a list or mapping"},
	{"scalar for mapping", "log: info", "gw.yaml:5: log: must be a mapping with the fields level, format"},
	{"scalar for list", "workerCPUs: 3", "gw.yaml:5: workerCPUs: must be a list"},
	{"empty element", "workerCPUs: [1, ~]", "gw.yaml:5: workerCPUs[1]: is empty, fill it in or remove it"},
	{"empty text", "proxy: {clusterCIDRs: [10.0.0.0/8, \"\"]}",
		"gw.yaml:5: proxy.clusterCIDRs[1]: is empty, fill it in or remove it"},
	{"alias", "nodeName: &a x\nstateDir: *a", "gw.yaml:6: stateDir: uses a YAML alias, write the value itself"},
	{"merge key", "log: {<<: {level: info}}", "gw.yaml:5: log.<<: is no known field"},
	{"number for text", "nodeName: 12", "gw.yaml:5: nodeName: must be a text, put 12 in quotes"},
	{"relative path of the seed", "maglev: {seedFile: seed}",
		`gw.yaml:5: maglev.seedFile: is "seed", write an absolute path`},
	{"text for number", "workers: two", `gw.yaml:5: workers: is "two", write a whole number in decimal`},
	{"fraction for number", "workers: 1.5", `gw.yaml:5: workers: is "1.5", write a whole number in decimal`},
	{"octal", "workers: 010", `gw.yaml:5: workers: is "010", write a whole number in decimal`},
	{"beyond 32 bits", "workers: 4294967297", `gw.yaml:5: workers: is "4294967297", write a whole number`},
	{"text for bool", "proxy: {clusterIPs: yes please}",
		`gw.yaml:5: proxy.clusterIPs: is "yes please", write true or false`},
	{"duration without unit", "drain: {timeout: 30}",
		`gw.yaml:5: drain.timeout: "30" is no duration, write a number with a unit`},
	{"negative duration", "drain: {timeout: -1s}", "gw.yaml:5: drain.timeout: is -1s, choose from 0s to 24h"},
	{"timeout too short", "flows: {timeouts: {finWait: 1ms}}",
		"gw.yaml:5: flows.timeouts.finWait: is 1ms, choose from 1s to 720h"},
	{"range reversed", "nodePortRange: 5-4", `gw.yaml:5: nodePortRange: "5-4" is no port range, write first-last`},
	{"range beyond 16 bits", "nodePortRange: 1-65536", `gw.yaml:5: nodePortRange: "1-65536" is no port range`},
	{"address for prefix", "nodeAddresses: [10.0.0.1]", `gw.yaml:5: nodeAddresses[0]: "10.0.0.1" is no CIDR`},
	{"host bits", "nodeAddresses: [10.0.0.1/8]",
		"gw.yaml:5: nodeAddresses[0]: is 10.0.0.1/8 with host bits set, write 10.0.0.0/8"},
	{"no address", "snat: {addresses: [gw1]}", `gw.yaml:5: snat.addresses[0]: "gw1" is no IP address`},
	{"loopback as source", "snat: {addresses: [127.0.0.1]}",
		"gw.yaml:5: snat.addresses[0]: is 127.0.0.1, write an address that backends can answer to"},
	{"source twice", "snat: {addresses: [10.0.0.1, 10.0.0.1]}",
		"gw.yaml:5: snat.addresses[1]: is 10.0.0.1 again, keep one"},
	{"well-known ports", "snat: {ports: 80-2000}",
		"gw.yaml:5: snat.ports: is 80-2000, choose a range above the well-known ports (below 1024)"},
	{"ports in node ports", "snat: {ports: 29000-31000}",
		"gw.yaml:5: snat.ports: is 29000-31000 and overlaps nodePortRange 30000-32767"},
	{"few ports", "snat: {ports: 20000-20009}",
		"gw.yaml:5: snat.ports: is 20000-20009, 10 ports; give at least 64"},
	{"a group's address", "group: {members: [{name: gw-a, address: '192.0.2.1:9473', sources: [198.51.100.1, " +
		"198.51.100.2]}, {name: gw-b, address: gw-b, sources: [198.51.100.3, 198.51.100.4]}], tls: {certFile: " +
		"/a, keyFile: /b, caFile: /c}}",
		`gw.yaml:5: group.members[1].address: "gw-b" is no address:port, write one such as 192.0.2.1:9473`},
	{"a group of one", "group: {members: [{name: gw-a, address: '192.0.2.1:9473', sources: [198.51.100.1, " +
		"198.51.100.2]}], tls: {certFile: /a, keyFile: /b, caFile: /c}}",
		"gw.yaml:5: group.members: has 1 entries, a group has 2 to 8 gateways"},
	{"no flows", "flows: {ipv4: 0, ipv6: 0}",
		"gw.yaml:5: flows: has no room for flows of either family, set ipv4 or ipv6"},
	{"profile", "flows: {profile: fast}", `gw.yaml:5: flows.profile: is "fast", choose one of default, rfc`},
	{"policy", "unservedVIPPort: ignore",
		`gw.yaml:5: unservedVIPPort: is "ignore", choose one of pass, reject, drop`},
	{"denied address", "deny: [192.0.2.1]", `gw.yaml:5: deny[0]: "192.0.2.1" is no CIDR`},
	{"denied host bits", "deny: [192.0.2.1/24]",
		"gw.yaml:5: deny[0]: is 192.0.2.1/24 with host bits set, write 192.0.2.0/24"},
	{"denied all", "deny: [10.0.0.0/8, 0.0.0.0/0]",
		"gw.yaml:5: deny[1]: is 0.0.0.0/0, choose a prefix length of at least /8"},
	{"denied all IPv6", `deny: ["2000::/3"]`,
		"gw.yaml:5: deny[0]: is 2000::/3, choose a prefix length of at least /16"},
	{"denied mapped", `deny: ["::ffff:192.0.2.0/120"]`,
		"gw.yaml:5: deny[0]: is ::ffff:192.0.2.0/120, in which no client can be"},
	{"denied multicast", "deny: [224.0.0.1/32]", "gw.yaml:5: deny[0]: is 224.0.0.1/32, in which no client can be"},
	{"fragments", "tuning: {fragments: -1}", "gw.yaml:5: tuning.fragments: is -1, choose from 0 to 1048576"},
	{"path MTU floor", "tuning: {pathMTUFloor: 1400}",
		"gw.yaml:5: tuning.pathMTUFloor: is 1400, choose from 68 to 1280"},
	{"ICMP rate", "tuning: {icmpRate: -1}", "gw.yaml:5: tuning.icmpRate: is -1, choose from 0 to 1000000"},
	{"few clients", "tuning: {affinityClients: 1}",
		"gw.yaml:5: tuning.affinityClients: is 1, choose from 1024 to 67108864"},
	{"time wait", "tuning: {timeWaitBackend: 0s}",
		"gw.yaml:5: tuning.timeWaitBackend: is 0s, choose from 1s to 720h"},
	{"heartbeat", "tuning: {passAfter: 1s}", "gw.yaml:5: tuning.passAfter: is 1s, choose from 3s to 1h"},
	{"frame size", "tuning: {frameSize: 3000}",
		"gw.yaml:5: tuning.frameSize: is 3000, the kernel accepts frames of 2048 or 4096 bytes"},
	{"ring not a power of two", "tuning: {ringSize: 1000}",
		"gw.yaml:5: tuning.ringSize: is 1000, choose a power of two from 64 to 32768"},
	{"ring too small", "tuning: {ringSize: 32}",
		"gw.yaml:5: tuning.ringSize: is 32, choose a power of two from 64 to 32768"},
	{"long poll", "sockets: {busyPoll: 2ms}", "gw.yaml:5: sockets.busyPoll: is 2ms, choose from 0s to 1ms"},
	{"part of a microsecond", "sockets: {busyPoll: 1500ns}",
		"gw.yaml:5: sockets.busyPoll: is 1.5µs, the kernel needs whole microseconds"},
	{"poll budget", "sockets: {busyPollBudget: 0}",
		"gw.yaml:5: sockets.busyPollBudget: is 0, choose from 8 to 1024"},
	{"host link name in use", "tuning: {hostLinkName: eth}",
		"gw.yaml:5: tuning.hostLinkName: is eth, but interfaces[0] is eth0"},
	{"host link without name", "tuning: {hostLinkName: ''}",
		`gw.yaml:5: tuning.hostLinkName: is "", choose a name of 1 to 14 characters`},
	{"host link with a long name", "tuning: {hostLinkName: fifteenletters0}",
		`gw.yaml:5: tuning.hostLinkName: is "fifteenletters0", choose a name`},
	{"host link without room", "hostLink: {addresses: [10.254.1.1/32]}",
		"gw.yaml:5: hostLink.addresses[0]: is 10.254.1.1/32, which has no address for the other end: write " +
			"a prefix of at most /31"},
	{"host link family twice", "hostLink: {addresses: [10.254.1.1/30, 10.254.2.1/30]}",
		"gw.yaml:5: hostLink.addresses[1]: is of the same family as hostLink.addresses[0]"},
	{"host link of a martian", "hostLink: {addresses: [169.254.1.1/30]}",
		"gw.yaml:5: hostLink.addresses[0]: is 169.254.1.1/30, in which 169.254.1.2 is the user-space end: write " +
			"a prefix with two addresses that can receive packets"},
	{"host link with a martian end", "hostLink: {addresses: [126.255.255.255/7]}",
		"gw.yaml:5: hostLink.addresses[0]: is 126.255.255.255/7, in which 127.0.0.0 is the user-space end"},
	{"source address of a martian", "snat: {addresses: [0.1.2.3]}",
		"gw.yaml:5: snat.addresses[0]: is 0.1.2.3, write an address that backends can answer to"},
	{"relative path", "stateDir: run", `gw.yaml:5: stateDir: is "run", write an absolute path`},
	{"long socket", "stateDir: /" + strings.Repeat("s", 90),
		"gw.yaml:5: stateDir: is too long: the path of a socket in it (pulse/pulse.sock) has 108 characters"},
	{"readers' socket in stateDir", "stateDir: /run/gw\nreaders: {socket: /run/gw/readers/s}",
		"gw.yaml:6: readers.socket: is in stateDir, which only the daemon's user may open"},
	{"readers' socket at a relative path", "readers: {socket: s}",
		`gw.yaml:5: readers.socket: is "s", write an absolute path`},
	{"readers' socket at a long path", "readers: {socket: /" + strings.Repeat("s", 103) + "}",
		"gw.yaml:5: readers.socket: has 104 characters, write a path of at most 103"},
	{"metrics without port", "metrics: {address: localhost}",
		`gw.yaml:5: metrics.address: is "localhost", write address:port`},
	{"metrics in the SNAT range", "metrics: {address: ':20000'}",
		"gw.yaml:5: metrics.address: has port 20000 inside snat.ports (16384-29999)"},
	{"a certificate without its key", "metrics: {tls: {certFile: /etc/tls.crt}}",
		"gw.yaml:5: metrics.tls.keyFile: is missing: TLS needs certFile and keyFile"},
	{"tokens at a relative path", "metrics: {tokenFile: tokens}",
		`gw.yaml:5: metrics.tokenFile: is "tokens", write an absolute path`},
	{"log level", "log: {level: loud}", `gw.yaml:5: log.level: is "loud", choose one of debug, info, warn, error`},
	{"precedence", "tuning: {precedence: on}", `gw.yaml:5: tuning.precedence: is "on", choose one of auto, none`},
	{"CPU twice", "workerCPUs: [1, 1]", "gw.yaml:5: workerCPUs[1]: is CPU 1 again"},
	{"fewer CPUs than workers", "workers: 2\nworkerCPUs: [1]",
		"gw.yaml:6: workerCPUs: has 1 entries for 2 workers"},
	{"node name", "nodeName: Node-1",
		`gw.yaml:5: nodeName: is "Node-1", write the name of the Node object: lower case`},
	{"two documents", "---\na: 1", "gw.yaml: holds more than one document, keep one GatewayConfiguration"},
	{"no YAML", "a: [", "gw.yaml: is neither YAML nor JSON: line 5: did not find expected node content"},

	{"other version", strings.Replace(minimal, "v1alpha1", "v9", 1),
		`gw.yaml:1: apiVersion: is "sluice.dev/v9", this version of sluice reads sluice.dev/v1alpha1`},
	{"other kind", strings.Replace(minimal, "Gateway", "Router", 1),
		`gw.yaml:2: kind: is "RouterConfiguration", this file must be of kind GatewayConfiguration`},
	{"no interface", strings.Split(minimal, "interfaces")[0],
		"gw.yaml: interfaces: is empty, name at least one interface to forward on"},
	{"interface twice", minimal + "- name: eth0\n", "gw.yaml:5: interfaces[1].name: is eth0 like interfaces[0]"},
	{"interface without name", strings.Replace(minimal, "name: eth0", "mode: auto", 1),
		"gw.yaml:4: interfaces[0].name: is missing"},
	{"deferral without timeout", minimal + "  napi: {deferHardIRQs: 2}\n",
		"gw.yaml:5: interfaces[0].napi.groFlushTimeout: is 0s with deferHardIRQs 2: interrupts are deferred " +
			"only if both are set"},
	{"deferral", minimal + "  napi: {deferHardIRQs: -1, groFlushTimeout: 1us}\n",
		"gw.yaml:5: interfaces[0].napi.deferHardIRQs: is -1, choose from 0 to 1000"},
	{"long timeout", minimal + "  napi: {groFlushTimeout: 1s}\n",
		"gw.yaml:5: interfaces[0].napi.groFlushTimeout: is 1s, choose from 0s to 10ms"},
	{"threaded", minimal + "  napi: {threaded: maybe}\n",
		`gw.yaml:5: interfaces[0].napi.threaded: is "maybe", choose one of keep, on, off`},
	{"interface name", strings.Replace(minimal, "eth0", "a/b", 1),
		`gw.yaml:4: interfaces[0].name: is "a/b", an interface name has at most 15 characters`},
	{"interface name of a directory", strings.Replace(minimal, "eth0", "..", 1),
		`gw.yaml:4: interfaces[0].name: is "..", an interface name has at most 15 characters`},
	{"mode", minimal + "  mode: fast\n",
		`gw.yaml:5: interfaces[0].mode: is "fast", choose one of auto, native, generic`},
	{"zero-copy", minimal + "  zeroCopy: 1\n",
		`gw.yaml:5: interfaces[0].zeroCopy: must be a text, put 1 in quotes`},
	{"generic zero-copy", minimal + "  mode: generic\n  zeroCopy: require\n",
		"gw.yaml:6: interfaces[0].zeroCopy: is require, but generic mode has none"},
	{"no queues", minimal + "  queues: 0\n",
		`gw.yaml:5: interfaces[0].queues: "0" is not a number of queues, write all or a number from 1 on`},
	{"many queues", minimal + "  queues: 1000\n", "gw.yaml:5: interfaces[0].queues: is 1000, choose from 1 to 256"},
}

type badField struct{ name, text, want string }

// file returns the whole file.
func (b *badField) file() string {
	if strings.HasPrefix(b.text, "apiVersion") {
		return b.text
	}
	return minimal + b.text + "\n"
}

func TestBadFields(t *testing.T) {
	for _, c := range badFields {
		t.Run(c.name, func(t *testing.T) {
			got := problems(t, c.file())
			if len(got) != 1 || !strings.HasPrefix(got[0], c.want) {
				t.Errorf("got  %q\nwant one problem starting with\n     %q", got, c.want)
			}
		})
	}
}

func TestEmptyFiles(t *testing.T) {
	for name, text := range map[string]string{"nothing": "", "a comment": "# later\n", "spaces": " \n"} {
		t.Run(name, func(t *testing.T) {
			got := problems(t, text)
			if len(got) != 1 || got[0] != "gw.yaml: is empty, start from the output of `sluice config defaults`" {
				t.Errorf("got %q", got)
			}
		})
	}
	t.Run("too large", func(t *testing.T) {
		got := problems(t, "# "+strings.Repeat("x", maxFileBytes))
		if len(got) != 1 || !strings.Contains(got[0], "is larger than") {
			t.Errorf("got %q", got)
		}
	})
}

// TestAllErrorsAreReported holds the whole message of a file with many mistakes of all kinds.
func TestAllErrorsAreReported(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "bad.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = ParseFile("bad.yaml", data)
	if err == nil {
		t.Fatal("a bad file was accepted")
	}
	want, readErr := os.ReadFile(filepath.Join("testdata", "bad.golden"))
	if readErr != nil {
		t.Fatal(readErr)
	}
	if diff := cmp.Diff(string(want), err.Error()+"\n"); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
}

// TestDefaultsFile holds the commented file against Default: the same values, and
// every field is there.
func TestDefaultsFile(t *testing.T) {
	d := decoder{}
	got := d.document(DefaultsYAML())
	if len(d.errs) > 0 {
		t.Fatalf("defaults.yaml has problems: %v", d.errs)
	}
	if want := Default(); !reflect.DeepEqual(got, want) {
		t.Errorf("defaults.yaml is not Default (-Default +file):\n%s", difference(want, got))
	}
	for _, l := range leaves(Default()) {
		if _, there := d.lines[l.path]; !there {
			t.Errorf("defaults.yaml does not show %s", l.path)
		}
	}
	for _, f := range fieldNames(reflect.TypeFor[Interface]()) {
		if !bytes.Contains(DefaultsYAML(), []byte(" "+f+": ")) {
			t.Errorf("defaults.yaml does not show interfaces[].%s", f)
		}
	}
}

// TestDefaultsAreValid: only the interfaces are missing from Default.
func TestDefaultsAreValid(t *testing.T) {
	c := Default()
	c.Interfaces = []Interface{{Name: "eth0", Mode: ModeAuto, ZeroCopy: ZeroCopyAuto,
		NAPI: NAPI{Threaded: ThreadedKeep}}}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	if err := Default().Validate(); err == nil || strings.Count(err.Error(), "\n") != 0 {
		t.Errorf("without interfaces: %v, want one problem", err)
	}
}

func TestMinimal(t *testing.T) {
	got, err := Parse([]byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Interfaces = []Interface{{Name: "eth0", Mode: ModeAuto, ZeroCopy: ZeroCopyAuto, Queues: AllQueues,
		NAPI: NAPI{Threaded: ThreadedKeep}}}
	if !reflect.DeepEqual(got, want) {
		t.Error(difference(want, got))
	}
}

// TestEverythingSet sets every field to something that is not its default, in YAML
// and in JSON indented by tabs; both must read alike and print back.
func TestEverythingSet(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "everything.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	set := leaves(c)
	for i, l := range leaves(Default()) {
		excluded := l.path == "group.nodes" // by group.members; TestMembersOfNodes has it
		if l.path != "apiVersion" && l.path != "kind" && !excluded && same(l.field, set[i].field) {
			t.Errorf("testdata/everything.yaml leaves %s at its default", l.path)
		}
	}
	tabbed, err := json.MarshalIndent(c, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	printed, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"JSON": tabbed, "YAML": printed} {
		again, err := Parse(text)
		if err != nil {
			t.Errorf("%s is refused: %v\n%s", name, err, text)
		} else if !reflect.DeepEqual(c, again) {
			t.Errorf("%s reads differently:\n%s", name, difference(c, again))
		}
	}
}

func TestProfile(t *testing.T) {
	c, err := Parse([]byte(minimal + "flows:\n  timeouts: {finWait: 7s}\n  profile: rfc\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := TimeoutsOf(ProfileRFC)
	want.FinWait = Duration(7 * time.Second)
	if c.Flows.Timeouts != want {
		t.Errorf("got %+v, want the profile but for finWait", c.Flows.Timeouts)
	}
	if got := c.Tuning.TimeWaitBackend; got != timeWaitBackendOf(ProfileRFC) {
		t.Errorf("tuning.timeWaitBackend is %s, not the profile's", got)
	}
}

// TestProfileTimeoutsEqualFlowTable: the profiles say what the flow table does without them.
func TestProfileTimeoutsEqualFlowTable(t *testing.T) {
	for profile, table := range map[Profile]flowtable.Timeouts{
		ProfileDefault: flowtable.DefaultTimeouts(), ProfileRFC: flowtable.RFCTimeouts(),
	} {
		c, got := TimeoutsOf(profile), table
		got.Established, got.Fin, got.TimeWaitBackend = c.Established.D(), c.FinWait.D(), timeWaitBackendOf(profile).D()
		got.UDPUnreplied, got.UDPReplied = c.UDPUnreplied.D(), c.UDPReplied.D()
		if got != table {
			t.Errorf("profile %s is %+v, the table's %+v", profile, got, table)
		}
	}
}

func TestLoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gw.yaml")
	if _, err := Load(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file gives %v", err)
	}
	if err := os.WriteFile(file, []byte(minimal+"workers: -3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(file); err == nil || !strings.HasPrefix(err.Error(), file+":5: workers: ") {
		t.Errorf("got %v, want the file's name, line and field", err)
	}
	if err := os.WriteFile(file, []byte(minimal), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := Load(file); err != nil || len(c.Interfaces) != 1 {
		t.Errorf("got %+v, %v", c, err)
	}
	if err := os.Chmod(file, 0o606); err != nil {
		t.Fatal(err)
	}
	var refusal *trusted.Refusal
	if _, err := Load(file); !errors.As(err, &refusal) || !strings.Contains(err.Error(), "chmod go-w "+file) {
		t.Errorf("a file that all may write: %v", err)
	}
	if c, err := LoadAnyOwner(file); err != nil || len(c.Interfaces) != 1 {
		t.Errorf("who only looks at it: %+v, %v", c, err)
	}
}

func TestNode(t *testing.T) {
	if got, err := (&Configuration{NodeName: "gw-1"}).Node(); got != "gw-1" || err != nil {
		t.Errorf("configured name: %q, %v", got, err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(NodeNameVariable, "node-of-the-pod")
	if got, err := (&Configuration{NodeName: "gw-1"}).Node(); got != "gw-1" || err != nil {
		t.Errorf("with the environment: %q %v", got, err)
	}
	if got, err := (&Configuration{}).Node(); got != "node-of-the-pod" || err != nil {
		t.Errorf("from the environment: %q %v", got, err)
	}
	t.Setenv(NodeNameVariable, "")
	if got, err := (&Configuration{}).Node(); got != strings.ToLower(host) || err != nil {
		t.Errorf("host name: %q, %v, want %q", got, err, strings.ToLower(host))
	}
}

func TestDurationText(t *testing.T) {
	for text, d := range map[string]time.Duration{
		"0s": 0, "30s": 30 * time.Second, "2h4m": 124 * time.Minute, "1h": time.Hour, "10m": 10 * time.Minute,
		"1h0m5s": time.Hour + 5*time.Second, "1.5s": 1500 * time.Millisecond, "250ms": 250 * time.Millisecond,
	} {
		if got := Duration(d).String(); got != text {
			t.Errorf("%v prints as %s, want %s", d, got, text)
		}
		var back Duration
		if err := back.UnmarshalText([]byte(text)); err != nil || back.D() != d {
			t.Errorf("%s reads as %v, %v", text, back, err)
		}
	}
}
