package config

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/internal/trusted"
	"sluice.dev/sluice/nat/header"
)

// check collects problems with values that could be read.
type check struct {
	errs    Errors
	refused map[string]bool // fields that the decoder has reported

	// rules has for each path what the checks tell its schema; nil: they tell nothing (rule).
	rules map[string][]func(*schema)
}

// Validate checks a configuration that did not come from a file. Load and Parse apply the same
// rules. Members of Nodes (WithMembers) must be able to work with the other settings.
func (c *Configuration) Validate() error {
	file := c
	if c.Group.Nodes != "" {
		file = c.WithMembers(nil)
	}
	errs := validate(file, nil)
	for i := range c.Group.Members {
		if m := &c.Group.Members[i]; c.Group.Nodes != "" {
			if err := c.CheckMember(m); err != nil {
				errs = append(errs, Error{Path: "group.nodes",
					Problem: fmt.Sprintf("selects Node %s: %v", m.Name, err)})
			}
		}
	}
	if len(errs) > 0 {
		for i := range errs {
			errs[i].File = "configuration"
		}
		return errs
	}
	return nil
}

func validate(c *Configuration, refused map[string]bool) Errors {
	k := check{refused: refused}
	k.all(c)
	return k.errs
}

func (k *check) all(c *Configuration) {
	k.header(c)
	k.interfaces(c)
	k.workers(c)
	k.addresses(c)
	k.group(c, &c.Group)
	k.proxy(c)
	k.between("directReturn.vni", c.DirectReturn.VNI, 0, 1<<24-1)
	k.between("directReturn.port", c.DirectReturn.Port, 1, 1<<16-1)
	k.flows(c)
	k.policies(c)
	k.tuning(c)
	oneOf(k, "waiting", c.Waiting, WaitingDedicated, WaitingShared)
	k.sockets(c)
	k.hostLink(c)
	k.paths(c)
	k.addressPools(c)
}

// fail records a problem with a field, unless one with the field or an enclosing field was
// reported.
func (k *check) fail(path, format string, args ...any) {
	for p := path; p != ""; {
		if k.refused[p] {
			return
		}
		i := strings.LastIndexAny(p, ".[")
		if i < 0 {
			break
		}
		p = p[:i]
	}
	k.errs = append(k.errs, Error{Path: path, Problem: fmt.Sprintf(format, args...)})
}

func (k *check) between(path string, v, low, high int) {
	k.rule(path, func(s *schema) { s.Minimum, s.Maximum = &low, &high })
	if v < low || v > high {
		k.fail(path, "is %d, choose from %d to %d", v, low, high)
	}
}

func (k *check) duration(path string, v Duration, low, high time.Duration) {
	k.rule(path, func(s *schema) {
		s.Description += fmt.Sprintf(" From %s to %s.", Duration(low), Duration(high))
		if low > 0 { // 0 alone has no unit
			s.Type, s.Minimum, s.Maximum = types{"string", "null"}, nil, nil
		}
	})
	if v.D() < low || v.D() > high {
		k.fail(path, "is %s, choose from %s to %s", v, Duration(low), Duration(high))
	}
}

// entries checks the length of a list.
func (k *check) entries(path string, n, most int) {
	k.rule(path, func(s *schema) { s.MaxItems = most })
	if n > most {
		k.fail(path, "has %d entries, at most %d are supported", n, most)
	}
}

// absolute checks the path of a file or a directory. An optional one may be empty.
func (k *check) absolute(path, value string, optional bool) {
	k.rule(path, func(s *schema) {
		s.Pattern = "^/"
		if optional || s.Default == "" {
			s.Pattern = "^(/|$)"
		}
	})
	if !filepath.IsAbs(value) && (!optional || value != "") {
		k.fail(path, "is %q, write an absolute path", value)
	}
}

func oneOf[T ~string](k *check, path string, v T, known ...T) {
	k.rule(path, func(s *schema) {
		for _, word := range known {
			s.Enum = append(s.Enum, word)
		}
	})
	if slices.Contains(known, v) {
		return
	}
	names := make([]string, len(known))
	for i := range known {
		names[i] = string(known[i])
	}
	k.fail(path, "is %q, choose one of %s", string(v), strings.Join(names, ", "))
}

func (k *check) header(c *Configuration) {
	k.required("apiVersion")
	k.rule("apiVersion", func(s *schema) { s.Const = APIVersion })
	k.required("kind")
	k.rule("kind", func(s *schema) { s.Const = Kind })
	k.pattern("nodeName", `^([^A-Z\s]([^A-Z]*[^A-Z\s])?)?$`)
	k.rule("nodeName", func(s *schema) { s.MaxLength = 253 })
	if c.APIVersion != APIVersion {
		k.fail("apiVersion", "is %q, this version of sluice reads %s", c.APIVersion, APIVersion)
	}
	if c.Kind != Kind {
		k.fail("kind", "is %q, this file must be of kind %s", c.Kind, Kind)
	}
	if len(c.NodeName) > 253 || strings.ToLower(strings.TrimSpace(c.NodeName)) != c.NodeName {
		k.fail("nodeName", "is %q, write the name of the Node object: lower case, no spaces, at most 253 characters",
			c.NodeName)
	}
}

// maxInterfaces follows from nexthop.Hop.Link and from the work of one poll of a worker.
const maxInterfaces = 16

func (k *check) interfaces(c *Configuration) {
	k.required("interfaces")
	if len(c.Interfaces) == 0 {
		k.fail("interfaces", "is empty, name at least one interface to forward on")
	}
	k.entries("interfaces", len(c.Interfaces), maxInterfaces)
	seen := map[string]int{}
	for i, f := range c.Interfaces {
		at := fmt.Sprintf("interfaces[%d]", i)
		k.required(at + ".name")
		k.pattern(at+".name", `^[^/:\s]{1,15}$`)
		if p := interfaceNameProblem(f.Name); p != "" {
			k.fail(at+".name", "%s", p)
		} else if first, twice := seen[f.Name]; twice {
			k.fail(at+".name", "is %s like interfaces[%d], name each interface once", f.Name, first)
		} else {
			seen[f.Name] = i
		}
		oneOf(k, at+".mode", f.Mode, ModeAuto, ModeNative, ModeGeneric)
		oneOf(k, at+".zeroCopy", f.ZeroCopy, ZeroCopyAuto, ZeroCopyNever, ZeroCopyRequire)
		if f.Mode == ModeGeneric && f.ZeroCopy == ZeroCopyRequire {
			k.fail(at+".zeroCopy", "is require, but generic mode has none; set mode to native or zeroCopy to auto")
		}
		k.napi(at+".napi", f.NAPI)
		k.between(at+".queues", max(1, int(f.Queues)), 1, maxWorkers) // AllQueues is 0
	}
}

// interfaceNameProblem applies the kernel's rules (dev_valid_name, net/core/dev.c).
func interfaceNameProblem(name string) string {
	switch {
	case name == "":
		return "is missing, write the name of a network interface as `ip link` shows it"
	case len(name) > 15, name == ".", name == "..", strings.ContainsAny(name, "/: \t\n\v\f\r"):
		return fmt.Sprintf("is %q, an interface name has at most 15 characters without slash, colon and space", name)
	}
	return ""
}

// maxWorkers bounds worker threads and queues.
const maxWorkers = 256

func (k *check) workers(c *Configuration) {
	k.between("workers", c.Workers, 0, maxWorkers)
	seen := map[int]bool{}
	k.rule("workerCPUs", func(s *schema) { s.Unique = true })
	for i, cpu := range c.WorkerCPUs {
		at := fmt.Sprintf("workerCPUs[%d]", i)
		k.between(at, cpu, 0, 8191)
		if seen[cpu] {
			k.fail(at, "is CPU %d again, give each worker its own CPU", cpu)
		}
		seen[cpu] = true
	}
	if n := len(c.WorkerCPUs); n > 0 && c.Workers > n {
		k.fail("workerCPUs", "has %d entries for %d workers, add CPUs or lower workers", n, c.Workers)
	}
}

// answerable reports whether packets to an address are forwarded. Workers drop all others as
// martian.
func answerable(a netip.Addr) bool {
	if !a.IsValid() || a.Zone() != "" || a.Is4In6() {
		return false
	}
	h := header.AddrFrom(a)
	return header.Unicast(&h)
}

func (k *check) addresses(c *Configuration) {
	for i, p := range c.NodeAddresses {
		if p.Prefix != p.Prefix.Masked() {
			k.fail(fmt.Sprintf("nodeAddresses[%d]", i), "is %s with host bits set, write %s", p, p.Prefix.Masked())
		}
	}
	k.rule("snat.addresses", func(s *schema) { s.Unique = true })
	seen := map[netip.Addr]bool{}
	for i, a := range c.SNAT.Addresses {
		at := fmt.Sprintf("snat.addresses[%d]", i)
		switch {
		case !answerable(a):
			k.fail(at, "is %s, write an address that backends can answer to", a)
		case seen[a]:
			k.fail(at, "is %s again, keep one", a)
		}
		seen[a] = true
	}
	if p := c.SNAT.Ports; p.First < 1024 {
		k.fail("snat.ports", "is %s, choose a range above the well-known ports (below 1024)", p)
	} else if p.Overlaps(c.NodePortRange) {
		k.fail("snat.ports",
			"is %s and overlaps nodePortRange %s: replies and requests would look alike; choose another range, "+
				"such as %s",
			p, c.NodePortRange, Default().SNAT.Ports)
	} else if p.Count() < minSNATPorts {
		k.fail("snat.ports", "is %s, %d ports; give at least %d: a backend has at most as many flows", p,
			p.Count(), minSNATPorts)
	}
}

func (k *check) proxy(c *Configuration) {
	for i, p := range c.Proxy.ClusterCIDRs {
		if p != p.Masked() {
			k.fail(fmt.Sprintf("proxy.clusterCIDRs[%d]", i), "is %s with host bits set, write %s", p, p.Masked())
		}
	}
	for i, p := range c.Proxy.ExternalIPs {
		if p != p.Masked() {
			k.fail(fmt.Sprintf("proxy.externalIPs[%d]", i), "is %s with host bits set, write %s", p, p.Masked())
		}
	}
	oneOf(k, "proxy.scheduler", c.Proxy.Scheduler, Schedulers...)
	k.between("proxy.namespaceShare", c.Proxy.NamespaceShare, 1, 100)
	k.between("limits.connectionsPerSource", c.Limits.ConnectionsPerSource, 0, services.MaxLimit)
	k.between("limits.newConnectionsPerSource", c.Limits.NewConnectionsPerSource, 0, services.MaxLimit)
	k.between("limits.connections", c.Limits.Connections, 0, services.MaxLimit)
	k.between("limits.newConnections", c.Limits.NewConnections, 0, services.MaxLimit)
	if c.EndpointHealth.Check != "" {
		if _, err := objects.ParseChecks(c.EndpointHealth.Check); err != nil {
			k.fail("endpointHealth.check", "%v", err)
		}
	}
	k.duration("kubernetes.staleEndpointTimeout", c.Kubernetes.StaleEndpointTimeout, 0, time.Hour)
	k.absolute("kubernetes.kubeconfig", c.Kubernetes.Kubeconfig, true)
	if _, err := labels.Parse(c.Kubernetes.NodeSelector); err != nil {
		k.fail("kubernetes.nodeSelector", "%q is not a label selector: %v", c.Kubernetes.NodeSelector, err)
	}
	k.pattern("kubernetes.daemonSet", "^([^/]+/[^/]+)?$")
	if namespace, name, _ := strings.Cut(c.Kubernetes.DaemonSet, "/"); c.Kubernetes.DaemonSet != "" &&
		(namespace == "" || name == "" || strings.Contains(name, "/")) {
		k.fail("kubernetes.daemonSet", "is %q, write namespace/name", c.Kubernetes.DaemonSet)
	}
	if !c.Kubernetes.Enabled && c.Manifests.Directory == "" {
		k.fail("kubernetes.enabled",
			"is false and manifests.directory is empty: Services have no source; set one of them")
	}
}

// minSNATPorts is the size below which a range must be a mistake.
const minSNATPorts = 64

// maxTimeout bounds the time that a flow lives without a packet.
const maxTimeout = 30 * 24 * time.Hour

func (k *check) flows(c *Configuration) {
	const most = 1 << 28
	k.between("flows.ipv4", c.Flows.IPv4, 0, most)
	k.between("flows.ipv6", c.Flows.IPv6, 0, most)
	if c.Flows.IPv4 == 0 && c.Flows.IPv6 == 0 {
		k.fail("flows", "has no room for flows of either family, set ipv4 or ipv6")
	}
	oneOf(k, "flows.resize", c.Flows.Resize, ResizeFit, ResizeForce)
	oneOf(k, "flows.profile", c.Flows.Profile, ProfileDefault, ProfileRFC)
	for _, leaf := range leaves(c) {
		if d, ok := leaf.value.(Duration); ok && strings.HasPrefix(leaf.path, "flows.timeouts.") {
			k.duration(leaf.path, d, time.Second, maxTimeout)
		}
	}
}

func (k *check) policies(c *Configuration) {
	oneOf(k, "unservedVIPPort", c.UnservedVIPPort, UnservedPass, UnservedReject, UnservedDrop)
	oneOf(k, "unknownConnection", c.UnknownConnection, UnknownReset, UnknownDrop)
	k.deny(c.Deny)
	k.duration("drain.timeout", c.Drain.Timeout, 0, 24*time.Hour)
	oneOf(k, "log.level", c.Log.Level, LogDebug, LogInfo, LogWarn, LogError)
	oneOf(k, "log.format", c.Log.Format, LogText, LogJSON)
	k.between("flowLog.maxMB", c.FlowLog.MaxMB, 10, 10_000_000)
	oneOf(k, "sandbox", c.Sandbox, SandboxEnforce, SandboxNone)
}

func (k *check) deny(list []netip.Prefix) {
	k.entries("deny", len(list), MaxDenied)
	for i, p := range list {
		if problem := DenialProblem(p); problem != "" {
			k.fail(fmt.Sprintf("deny[%d]", i), "%s", problem)
		}
	}
}

// MaxDenied is the number of prefixes that can be denied, including entries of `sluice deny`.
const MaxDenied = 1 << 16

// The shortest prefixes that can be denied: a shorter one is most probably a mistake, and cuts off
// a large part of all clients.
const (
	minDenied4 = 8
	minDenied6 = 16
)

// reserved has ::, ::1 and mapped IPv4 addresses (RFC 4291).
var reserved = netip.MustParsePrefix("::/16")

// DenialProblem returns why a prefix cannot be denied; "" if it can.
func DenialProblem(p netip.Prefix) string {
	shortest := minDenied6
	if p.Addr().Is4() {
		shortest = minDenied4
	}
	switch {
	case p != p.Masked():
		return fmt.Sprintf("is %s with host bits set, write %s", p, p.Masked())
	case p.Bits() < shortest:
		return fmt.Sprintf("is %s, choose a prefix length of at least /%d: a shorter one denies a large part of all "+
			"clients", p, shortest)
	case p.IsSingleIP() && !answerable(p.Addr()), p.Addr().Is6() && reserved.Contains(p.Addr().WithZone("")):
		return fmt.Sprintf("is %s, in which no client can be", p)
	}
	return ""
}

func (k *check) hostLink(c *Configuration) {
	h := &c.HostLink
	user, kernel := c.Tuning.HostLinkEnds()
	k.pattern("tuning.hostLinkName", `^[^/:\s]{1,14}$`)
	if p := interfaceNameProblem(user); p != "" || c.Tuning.HostLinkName == "" {
		k.fail("tuning.hostLinkName",
			"is %q, choose a name of 1 to 14 characters without slash, colon and space: the names of the two "+
				"ends of the host link are it with 0 and 1 appended", c.Tuning.HostLinkName)
	}
	if !h.Enabled() {
		return
	}
	for i, f := range c.Interfaces {
		if f.Name == user || f.Name == kernel {
			k.fail("tuning.hostLinkName",
				"is %s, but interfaces[%d] is %s: the host link is a veth pair that sluice makes itself, "+
					"choose a name that is not in use", c.Tuning.HostLinkName, i, f.Name)
		}
	}
	families := map[bool]int{}
	for i, p := range h.Addresses {
		at := fmt.Sprintf("hostLink.addresses[%d]", i)
		if user := p.Addr().Next(); !answerable(p.Addr()) || !answerable(user) {
			k.fail(at, "is %s, in which %s is the user-space end: write a prefix with two addresses that can receive "+
				"packets", p, user)
		}
		if p.Addr().BitLen()-p.Bits() < 1 {
			k.fail(at, "is %s, which has no address for the other end: write a prefix of at most /%d", p,
				p.Addr().BitLen()-1)
		}
		if first, twice := families[p.Addr().Is4()]; twice {
			k.fail(at, "is of the same family as hostLink.addresses[%d], give one per family", first)
		} else {
			families[p.Addr().Is4()] = i
		}
	}
}

// maxSocketPath is the size of sun_path in struct sockaddr_un without its final zero.
const maxSocketPath = 107

func (k *check) paths(c *Configuration) {
	for _, p := range []struct{ path, value string }{
		{"manifests.directory", c.Manifests.Directory}, {"stateDir", c.StateDir}, {"bpfFS", c.BPFFS},
		{"maglev.seedFile", c.Maglev.SeedFile}, {"flowLog.directory", c.FlowLog.Directory},
	} {
		k.absolute(p.path, p.value, p.path != "stateDir" && p.path != "bpfFS")
	}
	if s := c.PulseSocket(); len(s) > maxSocketPath { // the longest path of all sockets
		k.fail("stateDir",
			"is too long: the path of a socket in it (%s) has %d characters, a Unix socket's path has at most %d",
			filepath.Join(PulseDirectory, PulseSocketFile), len(s), maxSocketPath)
	}
	k.readers(c)
	k.listener(c, "metrics.address", c.Metrics.Address)
	k.metrics(&c.Metrics)
	k.listener(c, "health.address", c.Health.Address)
	if a := c.Health.Address; a != "" && a == c.Metrics.Address {
		k.fail("health.address", "is %s like metrics.address, give each its own port", a)
	}
}

func (k *check) readers(c *Configuration) {
	const at = "readers.socket"
	path := c.Readers.Socket
	k.absolute(at, path, false)
	below, err := filepath.Rel(c.StateDir, path)
	switch {
	case !filepath.IsAbs(path):
	case len(path)+len(trusted.NewSuffix) > maxSocketPath:
		k.fail(at, "has %d characters, write a path of at most %d", len(path), maxSocketPath-len(trusted.NewSuffix))
	case err == nil && below != ".." && !strings.HasPrefix(below, "../"):
		k.fail(at, "is in stateDir, which only the daemon's user may open: give it a directory of its own, such as %s",
			filepath.Dir(Default().Readers.Socket))
	}
}

func (k *check) metrics(m *Metrics) {
	for _, f := range []struct{ path, value, other string }{
		{"metrics.tls.certFile", m.TLS.CertFile, m.TLS.KeyFile},
		{"metrics.tls.keyFile", m.TLS.KeyFile, m.TLS.CertFile},
		{"metrics.tokenFile", m.TokenFile, ""},
	} {
		k.absolute(f.path, f.value, true)
		if f.value == "" && f.other != "" {
			k.fail(f.path, "is missing: TLS needs certFile and keyFile, write both or none")
		}
	}
}

// listener checks an address on which the daemon listens; empty: it does not listen.
func (k *check) listener(c *Configuration, path, address string) {
	k.pattern(path, "^(.*:[0-9]+)?$")
	if address == "" {
		return
	}
	host, port, err := net.SplitHostPort(address)
	n, perr := strconv.ParseUint(port, 10, 16)
	_, aerr := netip.ParseAddr(host)
	if err != nil || perr != nil || n == 0 || (host != "" && aerr != nil) {
		k.fail(path, "is %q, write address:port such as \":9470\" or \"127.0.0.1:9470\", or \"\" for none", address)
		return
	}
	if p := uint16(n); c.SNAT.Ports.Contains(p) {
		k.fail(path, "has port %d inside snat.ports (%s), choose one outside", p, c.SNAT.Ports)
	}
}
