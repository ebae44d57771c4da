package kubeproxy

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"sluice.dev/sluice/config"
)

// schedulers has the names of IPVS with the nearest scheduler of Sluice. kube-proxy gives all
// backends weight 1 (k8s.io/kubernetes pkg/proxy/ipvs/proxier.go); ipvsadm(8) describes the
// kernel's scheduler of each name.
var schedulers = map[string]struct{ here, differs string }{
	"rr": {"rr", ""}, "wrr": {"wrr", ""}, "lc": {"lc", ""}, "wlc": {"wlc", ""},
	"sh": {"sh", ""}, "dh": {"dh", ""}, "sed": {"sed", ""}, "nq": {"nq", ""},
	"mh":    {"maglev", ""},
	"lblc":  {"wlc", "it is for caches, and keeps one address at one backend; here it is least connection only"},
	"lblcr": {"wlc", "it is for caches, and keeps one address at one backend; here it is least connection only"},
	"fo": {"maglev",
		"it sends all flows to the backend of the highest weight, and kube-proxy gives all weight 1: all went to " +
			"one; here they are spread"},
	"ovf": {"maglev",
		"it fills one backend to its weight before the next, and kube-proxy gives all weight 1; here they are spread"},
	"twos": {"lc", "it compares two random backends; here all are compared"},
}

func (c *conversion) scheduler(s *setting) {
	to, known := schedulers[s.text]
	if !known {
		to.here = string(config.Schedulers[0])
		to.differs = "there is no scheduler of this name here; the default is Maglev, `sluice config defaults` lists " +
			"the others"
	}
	c.become(s, "proxy.scheduler", to.here, to.differs)
}

// The bounds of every entry of flows.timeouts.
const (
	shortest = time.Second
	longest  = 30 * 24 * time.Hour
)

// timeout makes a rule for the time that flows live without a packet.
func timeout(name, differs string) func(*conversion, *setting) {
	return func(c *conversion, s *setting) {
		if s.duration == 0 {
			c.none(s, "kube-proxy leaves the kernel's value alone with it; here the default of flows.timeouts."+name+
				" holds")
			return
		}
		d, why := s.duration, differs
		if d < shortest || d > longest {
			d = min(max(d, shortest), longest)
			why = fmt.Sprintf("the nearest that is possible here: %s to %s", config.Duration(shortest),
				config.Duration(longest))
		}
		c.become(s, "flows.timeouts."+name, config.Duration(d).String(), why)
	}
}

// kube-proxy's use of conntrack.maxPerCore and min (k8s.io/kubernetes
// pkg/proxy/conntrack/sysctls.go getConntrackMax, v1alpha1/defaults.go).
const (
	defaultMaxPerCore = 32 * 1024
	defaultMin        = 128 * 1024
	mostByCores       = 1 << 20
)

// conntrackMax is the rule for either of the two fields that make up nf_conntrack_max.
func (c *conversion) conntrackMax(s *setting) {
	perCore, least := int64(defaultMaxPerCore), int64(defaultMin)
	if p := c.by["conntrack.maxPerCore"]; p != nil {
		perCore = p.number
	}
	if p := c.by["conntrack.min"]; p != nil {
		least = p.number
	}
	if perCore < 0 || least < 0 || perCore > mostByCores || least > 1<<28 {
		c.refuse(s, "is %d, must be from 0 to %d", s.number, mostByCores)
		return
	}
	if perCore == 0 {
		c.none(s, "kube-proxy leaves nf_conntrack_max alone with maxPerCore 0; here the sizes of flows.ipv4 and "+
			"flows.ipv6 hold")
		return
	}
	n := perCore * int64(max(1, c.options.CPUs))
	if n > mostByCores {
		n = mostByCores
	} else {
		n = max(n, least)
	}
	value := strconv.FormatInt(n, 10)
	why := fmt.Sprintf("with %d CPUs nf_conntrack_max is %d, for the whole node and both families together; "+
		"here each family has a table of that size for what is forwarded, fixed at start", max(1, c.options.CPUs), n)
	c.tell(s, Differs, "flows.ipv4, flows.ipv6: "+value, why)
	from := s.path + ": " + s.text
	if c.by["conntrack.maxPerCore"] == nil || s.path == "conntrack.maxPerCore" {
		from += "; " + why
	}
	c.set("flows.ipv4", value, from)
	c.set("flows.ipv6", value, "like flows.ipv4")
}

// notes lists the defaults that differ between kube-proxy and Sluice.
func (c *conversion) notes() {
	unset := func(path string) bool { return c.by[path] == nil }
	note := func(format string, args ...any) { c.remarks = append(c.remarks, fmt.Sprintf(format, args...)) }
	d := config.Default()
	if unset("nodePortAddresses") && c.mode == modeNFTables {
		c.set("nodeAddresses", "[primary]", "mode nftables takes primary if nodePortAddresses is not set")
	} else if unset("nodePortAddresses") {
		note("Node ports are served on all addresses of the gateway's interfaces. kube-proxy in mode %s serves them "+
			"on all "+
			"addresses of the node: for those of other interfaces, write nodeAddresses: [0.0.0.0/0, \"::/0\"].", c.mode)
	}
	if m := c.text("detectLocalMode"); unset("clusterCIDR") && (m == "" || m == byClusterCIDR) {
		note("Without clusterCIDR kube-proxy keeps the address of clients of a ClusterIP; here it is translated, so " +
			"that replies come back.")
	}
	if c.mode == modeIPVS && unset("ipvs.scheduler") {
		c.set("proxy.scheduler", "rr", "mode ipvs takes rr if ipvs.scheduler is not set")
	} else if c.mode != modeIPVS {
		note("kube-proxy in mode %s chooses a random backend for each flow; here Maglev chooses (proxy.scheduler), "+
			"as evenly, "+
			"and alike on all gateways with the same maglev.seedFile.", c.mode)
	}
	if unset("conntrack.tcpEstablishedTimeout") && unset("ipvs.tcpTimeout") {
		note("An idle TCP connection lives %s (flows.timeouts.established); kube-proxy sets conntrack to 24h.",
			d.Flows.Timeouts.Established)
	}
	if unset("conntrack.tcpCloseWaitTimeout") && unset("ipvs.tcpFinTimeout") {
		note("A connection that one side has closed lives %s (flows.timeouts.finWait); kube-proxy sets conntrack to "+
			"1h for CLOSE_WAIT.", d.Flows.Timeouts.FinWait)
	}
	if unset("metricsBindAddress") {
		note("Metrics are on %s; kube-proxy's are on 127.0.0.1:10249.", d.Metrics.Address)
	}
}

// warn lists values that are right only for some gateways or clients.
func (c *conversion) warn() {
	warn := func(format string, args ...any) { c.warnings = append(c.warnings, fmt.Sprintf(format, args...)) }
	for _, e := range c.entries {
		switch e.path {
		case "nodeName":
			warn("nodeName is %s, from hostnameOverride: remove it from a file that several gateways share, or "+
				"each acts as that node.", e.value)
		case "flows.ipv4":
			if c.options.CPUsAssumed {
				warn("flows.ipv4 and flows.ipv6 are %s because this machine has %d CPUs: give a gateway's number "+
					"with --cpus.", e.value, c.options.CPUs)
			}
		case "metrics.address", "health.address":
			text, _ := strconv.Unquote(e.value)
			if at, err := netip.ParseAddrPort(text); err == nil && at.Addr() == netip.IPv4Unspecified() {
				warn("%s is %s, and 0.0.0.0 is IPv4 only: write \":%d\" to listen on IPv6, too.", e.path, text,
					at.Port())
			}
		}
	}
}
