package kubeproxy

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/config"
)

var update = flag.Bool("update", false, "write the golden files")

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not what came out (%v); see the difference after `go test ./config/kubeproxy "+
			"-update`\n%s", path, err, got)
	}
}

// Files of every mode, to the letter; what comes out is a configuration of ours.
func TestConvert(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"kubeadm", "ipvs", "nftables"} {
		t.Run(name, func(t *testing.T) {
			got, err := Convert(name+".yaml", read(t, name+".yaml"), Options{Interfaces: []string{"eth0", "eth1"},
				CPUs: 8})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := config.Parse(got.YAML); err != nil {
				t.Errorf("sluice would not take it: %v", err)
			}
			var b bytes.Buffer
			b.Write(got.YAML)
			b.WriteString("---\n")
			for _, f := range got.Fields {
				fmt.Fprintf(&b, "%d %s: %s | %s | %s | %s\n", f.Line, f.Path, f.Value, f.Fate, f.Here, f.Why)
			}
			golden(t, name+".golden", b.Bytes())
		})
	}
}

// Every problem of a file is told at once, with its line.
func TestProblems(t *testing.T) {
	t.Parallel()
	_, err := Convert("bad.yaml", read(t, "bad.yaml"), Options{})
	if err == nil {
		t.Fatal("no error")
	}
	golden(t, "bad.golden", []byte(err.Error()+"\n"))
}

func convert(t *testing.T, text string, o Options) (*Result, *config.Configuration) {
	t.Helper()
	r, err := Convert("-", []byte("apiVersion: "+apiVersion+"\nkind: "+kind+"\n"+text), o)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse(r.YAML)
	if err != nil {
		t.Fatalf("sluice would not take it: %v\n%s", err, r.YAML)
	}
	return r, c
}

// The conversion of fields that depend on others.
func TestDependentFields(t *testing.T) {
	t.Parallel()
	eth0 := Options{Interfaces: []string{"eth0"}, CPUs: 64}
	for _, tt := range []struct {
		name, text string
		want       func(*config.Configuration) any
		is         any
	}{
		{"cluster CIDR", "clusterCIDR: 10.1.2.3/16", clusterCIDRs, "[10.1.0.0/16]"},
		{"cluster CIDR that is not read", "clusterCIDR: 10.1.0.0/16\ndetectLocalMode: NodeCIDR", clusterCIDRs, "[]"},
		{"pods by bridge",
			"detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}\nclusterCIDR: 10.1.0.0/16",
			clusterCIDRs, "[]"},
		{"pods by CIDR", "detectLocalMode: ClusterCIDR\nclusterCIDR: 10.1.0.0/16", clusterCIDRs, "[10.1.0.0/16]"},
		{"iptables masqueradeAll in mode iptables", "iptables: {masqueradeAll: true}", masqueradeAll, "true"},
		{"iptables masqueradeAll in mode ipvs", "mode: ipvs\niptables: {masqueradeAll: true}", masqueradeAll, "true"},
		{"iptables masqueradeAll in mode nftables", "mode: nftables\niptables: {masqueradeAll: true}", masqueradeAll,
			"false"},
		{"nftables masqueradeAll in mode iptables", "nftables: {masqueradeAll: true}", masqueradeAll, "false"},
		{"scheduler in mode ipvs", "mode: ipvs\nipvs: {scheduler: sed}", scheduler, "sed"},
		{"scheduler mh", "mode: ipvs\nipvs: {scheduler: mh}", scheduler, "maglev"},
		{"no scheduler in mode ipvs", "mode: ipvs", scheduler, "rr"},
		{"scheduler in mode iptables", "ipvs: {scheduler: sed}", scheduler, "maglev"},
		{"scheduler nobody knows", "mode: ipvs\nipvs: {scheduler: mine}", scheduler, "maglev"},
		{"node ports in mode nftables", "mode: nftables", nodeAddresses, "[primary]"},
		{"node ports in mode iptables", "mode: iptables", nodeAddresses, "[]"},
		{"primary", "nodePortAddresses: [primary]", nodeAddresses, "[primary]"},
		{"the other family", `nodePortAddresses: ["2001:db8::/32"]`, nodeAddresses, "[2001:db8::/32 0.0.0.0/0]"},
		{"both families", `nodePortAddresses: ["2001:db8::/32", 10.0.0.0/8]`, nodeAddresses,
			"[2001:db8::/32 10.0.0.0/8]"},
		{"conntrack is capped", "conntrack: {maxPerCore: 32768}", flows, "1048576 1048576"},
		{"conntrack by cores", "conntrack: {maxPerCore: 4096, min: 8}", flows, "262144 262144"},
		{"conntrack by min", "conntrack: {maxPerCore: 10, min: 5000}", flows, "5000 5000"},
		{"conntrack min above the cap of cores", "conntrack: {maxPerCore: 10, min: 5000000}", flows, "5000000 5000000"},
		{"conntrack left alone", "conntrack: {maxPerCore: 0, min: 5000}", flows, "1048576 262144"},
		{"the shorter timeout", "mode: ipvs\nipvs: {tcpTimeout: 15m}\nconntrack: {tcpEstablishedTimeout: 10m}",
			established, "10m"},
		{"the shorter timeout, the other",
			"mode: ipvs\nipvs: {tcpTimeout: 5m}\nconntrack: {tcpEstablishedTimeout: 10m}", established, "5m"},
		{"a timeout that is too long", "conntrack: {tcpEstablishedTimeout: 1440h}", established, "720h"},
		{"kubernetes' own timeout", "conntrack: {tcpEstablishedTimeout: 0s}", established, "2h4m"},
		{"kubeconfig of kubeadm", "clientConnection: {kubeconfig: /var/lib/kube-proxy/kubeconfig.conf}", kubeconfig,
			""},
		{"kubeconfig", "clientConnection: {kubeconfig: /etc/k}", kubeconfig, "/etc/k"},
		{"node name", "hostnameOverride: ' NODE '", func(c *config.Configuration) any { return c.NodeName }, "node"},
		{"health without a port", `healthzBindAddress: "[::]"`,
			func(c *config.Configuration) any { return c.Health.Address }, "[::]:10256"},
		{"health with a port", "healthzBindAddress: 10.0.0.1:99",
			func(c *config.Configuration) any { return c.Health.Address }, "10.0.0.1:99"},
		{"metrics", "metricsBindAddress: 10.0.0.1:10249",
			func(c *config.Configuration) any { return c.Metrics.Address }, "10.0.0.1:9470"},
		{"objects from the API server", "", func(c *config.Configuration) any {
			return fmt.Sprint(c.Kubernetes.Enabled,
				c.Manifests.Directory)
		}, "true"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, c := convert(t, tt.text, eth0); fmt.Sprint(tt.want(c)) != tt.is {
				t.Errorf("%v, want %v", tt.want(c), tt.is)
			}
		})
	}
}

func clusterCIDRs(c *config.Configuration) any  { return c.Proxy.ClusterCIDRs }
func masqueradeAll(c *config.Configuration) any { return c.Proxy.MasqueradeAll }
func scheduler(c *config.Configuration) any     { return c.Proxy.Scheduler }
func nodeAddresses(c *config.Configuration) any { return c.NodeAddresses }
func flows(c *config.Configuration) any         { return fmt.Sprint(c.Flows.IPv4, c.Flows.IPv6) }
func established(c *config.Configuration) any   { return c.Flows.Timeouts.Established }
func kubeconfig(c *config.Configuration) any    { return c.Kubernetes.Kubeconfig }

// Every field that is set is reported once, in any file, and each that was converted is in force.
func TestEachFieldIsReported(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ipvs", "nftables"} {
		r, err := Convert(name, read(t, name+".yaml"), Options{CPUs: 1})
		if err != nil {
			t.Fatal(err)
		}
		told := map[string]int{}
		for _, f := range r.Fields {
			told[f.Path]++
			if f.Fate != Kept && f.Why == "" {
				t.Errorf("%s: %s %s without a reason", name, f.Path, f.Fate)
			}
			if last := f.Path[strings.LastIndex(f.Path, ".")+1:]; !strings.Contains(string(r.YAML), last) {
				t.Errorf("%s: %s is not in the comments", name, f.Path)
			}
		}
		for path, n := range told {
			if n != 1 {
				t.Errorf("%s: %s is told of %d times", name, path, n)
			}
		}
		if want := map[string]int{"ipvs": 49, "nftables": 7}[name]; len(told) != want {
			t.Errorf("%s: told of %d fields, %d are set", name, len(told), want)
		}
	}
}

// Every scheduler that is offered is one of ours.
func TestSchedulers(t *testing.T) {
	t.Parallel()
	for theirs := range schedulers {
		convert(t, "mode: ipvs\nipvs: {scheduler: "+theirs+"}", Options{Interfaces: []string{"eth0"}})
	}
}

// What is no configuration of kube-proxy's is refused with what to do.
func TestOtherFiles(t *testing.T) {
	t.Parallel()
	const body = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", "x: holds no KubeProxyConfiguration and no ConfigMap with one (but: nothing)"},
		{"another kind", "kind: Pod\n", `(but: "Pod")`},
		{"another version", "apiVersion: kubeproxy.config.k8s.io/v1\nkind: KubeProxyConfiguration\n",
			`x:1: apiVersion: is "kubeproxy.config.k8s.io/v1"`},
		{"two", body + "---\n" + body, "x:4: is the second"},
		{"no YAML", "a: [", "is neither YAML nor JSON"},
		{"a list", "- a\n", "not a mapping"},
		{"a ConfigMap of something else", "kind: ConfigMap\ndata: {a: b}\n", "x:1: data: has no key config.conf"},
		{"an unknown field in a ConfigMap",
			"kind: ConfigMap\ndata:\n  config.conf: |\n    kind: KubeProxyConfiguration\n    apiVersion: " +
				"kubeproxy.config.k8s.io/v1alpha1\n    what: 1\n",
			"x:6: what: is not a field"},
		{"an unknown field on one line",
			`{"kind": "ConfigMap", "data": {"proxy": "kind: KubeProxyConfiguration\napiVersion: kubeproxy.config.k8s.io/v1alpha1\nwhat: 1"}}`,
			"x: what: is not a field"},
		{"a value that is none of ours", body + "hostnameOverride: " + strings.Repeat("a", 300),
			"x:3: hostnameOverride: became nodeName: "},
		{"too large", strings.Repeat("#", maxBytes+1), "is larger than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Convert("x", []byte(tt.text), Options{}); err == nil || !strings.Contains(err.Error(),
				tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

// Without interfaces the file says what is missing, and check does too.
func TestInterfacesAreMissing(t *testing.T) {
	t.Parallel()
	r, err := Convert("x", read(t, "kubeadm.yaml"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(r.YAML), "# - name: eth0") {
		t.Errorf("no word of interfaces:\n%s", r.YAML)
	}
	if _, err := config.Parse(r.YAML); err == nil || !strings.Contains(err.Error(), "interfaces: is empty") {
		t.Errorf("%v, want one about the interfaces", err)
	}
}

// Whatever it is given, it does not panic, and what it makes is a configuration.
func FuzzConvert(f *testing.F) {
	for _, name := range []string{"kubeadm.yaml", "ipvs.yaml", "nftables.yaml", "bad.yaml"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Convert("x", data, Options{Interfaces: []string{"eth0"}, CPUs: 2})
		if err != nil {
			return
		}
		if _, err := config.Parse(r.YAML); err != nil {
			t.Errorf("sluice would not take it: %v\n%s", err, r.YAML)
		}
	})
}

// TestWarnings: what is right for some gateways only is said, and nothing else.
func TestWarnings(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		assumed    bool
		want       string // in part; "" is no warning
	}{
		{"one node's name", "hostnameOverride: Gw-1", false, `nodeName is "gw-1"`},
		{"another machine's CPUs", "conntrack: {maxPerCore: 1024}", true, "because this machine has 64 CPUs"},
		{"CPUs that were given", "conntrack: {maxPerCore: 1024}", false, ""},
		{"CPUs that do not matter", "mode: nftables", true, ""},
		{"IPv4 metrics", "metricsBindAddress: 0.0.0.0:10249", false,
			`metrics.address is 0.0.0.0:9470, and 0.0.0.0 is IPv4 only: write ":9470"`},
		{"metrics of one address", "metricsBindAddress: 127.0.0.1:10249", false, ""},
		{"IPv4 health", "healthzBindAddress: 0.0.0.0:10256", false, `health.address is 0.0.0.0:10256`},
		{"nothing", "", true, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n" + tt.text + "\n"
			r, err := Convert("x", []byte(text), Options{CPUs: 64, CPUsAssumed: tt.assumed})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(r.Warnings, "\n"); len(r.Warnings) > 1 || (got == "") != (tt.want == "") ||
				!strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
