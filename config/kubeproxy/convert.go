package kubeproxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/config"
)

// entry is a line of the result.
type entry struct {
	path, value string
	comments    []string
}

// conversion is the conversion of one file.
type conversion struct {
	options Options
	mode    string // of kube-proxy; never empty
	by      map[string]*setting
	order   []*setting

	fields   []Field
	remarks  []string
	warnings []string
	entries  []entry
	problems config.Errors
}

func newConversion(settings []setting, o Options) *conversion {
	c := &conversion{options: o, by: map[string]*setting{}, fields: []Field{}, remarks: []string{},
		warnings: []string{}}
	for i := range settings {
		s := &settings[i]
		c.by[s.path], c.order = s, append(c.order, s)
	}
	c.mode = modeIPTables // its default on Linux
	if s := c.by["mode"]; s != nil {
		c.mode = s.text
	}
	return c
}

// text returns the text of a field, or "".
func (c *conversion) text(path string) string {
	if s := c.by[path]; s != nil {
		return s.text
	}
	return ""
}

// apply runs the rule of every setting.
func (c *conversion) apply() {
	for _, s := range c.order {
		if of := s.rule.of; of != "" && !slices.Contains(strings.Split(of, " or "), c.mode) {
			c.none(s, fmt.Sprintf("kube-proxy reads it in mode %s, and the mode is %s", of, c.mode))
			continue
		}
		s.rule.become(c, s)
	}
}

func (c *conversion) none(s *setting, why string) { c.tell(s, NoMeaning, "", why) }

func (c *conversion) tell(s *setting, f Fate, here, why string) {
	c.fields = append(c.fields, Field{Line: s.line, Path: s.path, Value: s.text, Fate: f, Here: here, Why: why})
}

// become records that a setting becomes path: value. With a reason the field differs.
func (c *conversion) become(s *setting, path, value, differs string) {
	fate := Kept
	if differs != "" {
		fate = Differs
	}
	c.tell(s, fate, path+": "+value, differs)
	c.set(path, value, strings.TrimSuffix(s.path+": "+s.text+"; "+differs, "; "))
}

// set adds a line to the result. If two timeouts set a line, the shorter one applies, as in
// kube-proxy.
func (c *conversion) set(path, value, comment string) {
	for i := range c.entries {
		if e := &c.entries[i]; e.path == path {
			if !slices.Contains(e.comments, comment) {
				e.comments = append(e.comments, comment)
			}
			if strings.HasPrefix(path, "flows.timeouts.") && shorter(value, e.value) {
				e.value = value
			}
			return
		}
	}
	c.entries = append(c.entries, entry{path, value, []string{comment}})
}

// settle reports the settings whose value was replaced by another setting's.
func (c *conversion) settle() {
	for i := range c.fields {
		f := &c.fields[i]
		for _, e := range c.entries {
			if here := e.path + ": " + e.value; strings.HasPrefix(f.Here, e.path+": ") && f.Here != here {
				f.Fate, f.Here, f.Why = Differs, here, "another field is shorter, and the shorter one applies"
			}
		}
	}
}

// check validates the result. It reports an error for the field from which the value came.
func (c *conversion) check(name string) config.Errors {
	whole := *c
	if len(whole.options.Interfaces) == 0 {
		whole.options.Interfaces = []string{"eth0"}
	}
	_, err := config.ParseFile(name, whole.yaml())
	var ours config.Errors
	if !errors.As(err, &ours) {
		return nil
	}
	for i := range ours {
		e := &ours[i]
		e.Line = 0
		for _, f := range c.fields {
			if strings.HasPrefix(f.Here, e.Path+": ") {
				e.Line, e.Path, e.Problem = f.Line, f.Path, "became "+f.Here+", which "+e.Problem
				break
			}
		}
	}
	return ours
}

func shorter(a, b string) bool {
	x, err1 := time.ParseDuration(a)
	y, err2 := time.ParseDuration(b)
	return err1 == nil && err2 == nil && x < y
}

func (c *conversion) refuse(s *setting, format string, args ...any) {
	c.problems = append(c.problems, config.Error{Line: s.line, Path: s.path, Problem: fmt.Sprintf(format, args...)})
}

func (c *conversion) modeSetting(s *setting) {
	switch s.text {
	case modeIPTables, modeIPVS, modeNFTables:
		c.none(s, "packets from outside never reach the kernel's tables; docs/kube-proxy.md lists how the modes "+
			"differ, and which of them Sluice follows")
	case "kernelspace":
		c.refuse(s, "is for Windows nodes; use the configuration of the Linux nodes")
	default:
		c.refuse(s, "is %q, kube-proxy has %s, %s and %s", s.text, modeIPTables, modeIPVS, modeNFTables)
	}
}

// Modes of detecting the clients that are pods.
const byClusterCIDR = "ClusterCIDR"

func (c *conversion) clusterCIDR(s *setting) {
	if m := c.text("detectLocalMode"); m != "" && m != byClusterCIDR {
		c.none(s, "kube-proxy reads it with detectLocalMode ClusterCIDR only, and that is "+m)
		return
	}
	list, ok := c.prefixes(s, strings.Split(s.text, ","))
	if !ok {
		return
	}
	if len(list) > 2 || len(list) == 2 && list[0].Addr().Is4() == list[1].Addr().Is4() {
		c.refuse(s, "is %q, kube-proxy accepts one CIDR or one of each family", s.text)
		return
	}
	c.become(s, "proxy.clusterCIDRs", quoted(list), "")
}

// prefixes parses CIDRs. kube-proxy ignores their host bits.
func (c *conversion) prefixes(s *setting, texts []string) (list []netip.Prefix, ok bool) {
	for _, t := range texts {
		p, err := netip.ParsePrefix(strings.TrimSpace(t))
		if err != nil {
			c.refuse(s, "has %q, which is no CIDR such as 10.244.0.0/16 or fd00:10:244::/56", t)
			return nil, false
		}
		list = append(list, p.Masked())
	}
	return list, true
}

func quoted[T fmt.Stringer](list []T) string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = strconv.Quote(v.String())
	}
	return "[" + strings.Join(out, ", ") + "]"
}

func (c *conversion) detectLocalMode(s *setting) {
	switch s.text {
	case byClusterCIDR:
		c.tell(s, Kept, "", "it is the only mode here: proxy.clusterCIDRs decides which clients are pods")
	case "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix":
		c.tell(s, Kept, "",
			"it tells the pods of this node from all other clients, and packets from the gateway's interfaces are "+
				"never "+
				"from those. Without proxy.clusterCIDRs all clients count as outside here, too")
	default:
		c.refuse(s, "is %q, kube-proxy has ClusterCIDR, NodeCIDR, BridgeInterface and InterfaceNamePrefix", s.text)
	}
}

func (c *conversion) masqueradeAll(s *setting) { c.become(s, "proxy.masqueradeAll", "true", "") }

func (c *conversion) hostnameOverride(s *setting) {
	c.become(s, "nodeName", strconv.Quote(strings.ToLower(strings.TrimSpace(s.text))),
		"it makes this the file of one node: remove it where gateways share the file, as they do with the chart, "+
			"which names each node itself")
}

// nodePortAddresses converts the addresses for node ports. A family without a CIDR in the list is
// not restricted (k8s.io/kubernetes pkg/proxy/util/nodeport_addresses.go).
func (c *conversion) nodePortAddresses(s *setting) {
	if slices.Equal(s.list, []string{"primary"}) {
		c.become(s, "nodeAddresses", "[primary]", "")
		return
	}
	list, ok := c.prefixes(s, s.list)
	if !ok {
		return
	}
	why := ""
	for _, all := range []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")} {
		if !slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Addr().Is4() == all.Addr().Is4() }) {
			list = append(list, all)
			why = fmt.Sprintf("with %s, because kube-proxy does not restrict a family that has no CIDR of its own; "+
				"remove it to have no node ports there", all)
		}
	}
	c.become(s, "nodeAddresses", quoted(list), why)
}

// listener completes an address in the way of kube-proxy.
func (c *conversion) listener(s *setting, port string) (host, withPort string, ok bool) {
	host, given, err := net.SplitHostPort(s.text)
	if err != nil {
		host, given = strings.Trim(s.text, "[]"), port
	}
	_, err = netip.ParseAddr(host)
	n, perr := strconv.ParseUint(given, 10, 16)
	if err != nil || perr != nil || n == 0 {
		c.refuse(s, "is %q, must be an IP address and a port such as 0.0.0.0:%s", s.text, port)
		return "", "", false
	}
	return host, net.JoinHostPort(host, given), true
}

func (c *conversion) healthz(s *setting) {
	if _, address, ok := c.listener(s, "10256"); ok {
		c.become(s, "health.address", strconv.Quote(address), "")
	}
}

// metrics converts only the host: on a node with both programs, kube-proxy holds its port.
func (c *conversion) metrics(s *setting) {
	if host, _, ok := c.listener(s, "10249"); ok {
		_, port, _ := net.SplitHostPort(config.Default().Metrics.Address)
		c.become(s, "metrics.address", strconv.Quote(net.JoinHostPort(host, port)),
			"kube-proxy itself holds its port on a node that has both")
	}
}

// kubeadmKubeconfig is the path in kubeadm's own ConfigMap for kube-proxy, with the service account
// of kube-proxy's pod (k8s.io/kubernetes cmd/kubeadm/app/phases/addons/proxy).
const kubeadmKubeconfig = "/var/lib/kube-proxy/kubeconfig.conf"

func (c *conversion) kubeconfig(s *setting) {
	switch {
	case s.text == kubeadmKubeconfig:
		c.become(s, "kubernetes.kubeconfig", `""`,
			"that file is of kube-proxy's own pod, with its service account; empty takes the pod's own. "+
				"The address of the API server is then that of Service default/kubernetes, unless "+
				"KUBERNETES_SERVICE_HOST is set (apiServer of the chart)")
	case !filepath.IsAbs(s.text):
		c.refuse(s, "is %q, Sluice accepts only an absolute path", s.text)
	default:
		c.become(s, "kubernetes.kubeconfig", strconv.Quote(s.text), "")
	}
}

func (c *conversion) logFormat(s *setting) {
	if s.text != string(config.LogText) && s.text != string(config.LogJSON) {
		c.refuse(s, "is %q, kube-proxy has text and json", s.text)
		return
	}
	c.become(s, "log.format", s.text, "")
}

// debugVerbosity is the verbosity at which Kubernetes' components log details (Kubernetes
// community, sig-instrumentation/logging.md: 4 is debug level).
const debugVerbosity = 4

func (c *conversion) logVerbosity(s *setting) {
	level := config.LogInfo
	if s.number >= debugVerbosity {
		level = config.LogDebug
	}
	c.become(s, "log.level", string(level), "there are four levels; from verbosity 4 on it is debug")
}
