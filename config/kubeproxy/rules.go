package kubeproxy

import (
	"fmt"
	"maps"
)

// holds is the type of a field.
type holds int

const (
	texts holds = iota
	flags
	numbers
	durations
	lists    // of strings
	anything // not used
)

// rule is how a field is converted.
type rule struct {
	holds holds
	// zeroIsSet: the type in kube-proxy is a pointer, so a written zero counts as set.
	zeroIsSet bool
	// of has the modes in which kube-proxy reads the field, such as "iptables or ipvs"; empty: all.
	of     string
	become func(*conversion, *setting)
}

// The modes of kube-proxy on Linux.
const (
	modeIPTables = "iptables"
	modeIPVS     = "ipvs"
	modeNFTables = "nftables"
)

// none is the conversion of a field that applies to nothing in Sluice.
func none(why string) func(*conversion, *setting) {
	return func(c *conversion, s *setting) { c.none(s, why) }
}

// rules has every field of kube-proxy. If k8s.io/kube-proxy config/v1alpha1 types.go does not
// explain a field, a comment names the source.
func rules() map[string]rule {
	table := map[string]rule{
		"mode":             {become: (*conversion).modeSetting},
		"clusterCIDR":      {become: (*conversion).clusterCIDR},
		"detectLocalMode":  {become: (*conversion).detectLocalMode},
		"hostnameOverride": {become: (*conversion).hostnameOverride},
		"bindAddress": {become: none("it only tells kube-proxy which address of its node is the primary one; Sluice " +
			"takes that from the Node object, " +
			"and from the interfaces while it does not know one")},
		"bindAddressHardFail": {holds: flags,
			become: none("a port that is taken is a warning here and is tried again; it never stops forwarding")},
		"healthzBindAddress": {become: (*conversion).healthz},
		"metricsBindAddress": {become: (*conversion).metrics},
		"nodePortAddresses":  {holds: lists, become: (*conversion).nodePortAddresses},
		"configSyncPeriod": {holds: durations,
			become: none("objects are watched, and never read again without a reason")},
		"featureGates": {holds: anything,
			become: none("they belong to kube-proxy's own code; externalIPs and every other field are served as with " +
				"its defaults")},
		"enableProfiling": {holds: flags, become: none("there are no profiling handlers")},
		"showHiddenMetricsForVersion": {become: none("no metric is hidden; docs/metrics.md lists all, and which have " +
			"kube-proxy's names")},
		"oomScoreAdj": {holds: numbers, zeroIsSet: true,
			become: none("the process does not set its own score: in a pod the kubelet does, by priority class and " +
				"resources")},
		"portRange": {become: none("kube-proxy itself has not used it since the userspace mode went")},

		"detectLocal.bridgeInterface":     {become: none("see detectLocalMode")},
		"detectLocal.interfaceNamePrefix": {become: none("see detectLocalMode")},

		"clientConnection.kubeconfig":         {become: (*conversion).kubeconfig},
		"clientConnection.acceptContentTypes": {become: none("the client chooses; it requests protobuf")},
		"clientConnection.contentType":        {become: none("the client chooses; it requests protobuf")},
		"clientConnection.qps": {holds: anything,
			become: none("three watches, and an Event now and then, need no limit of their own")},
		"clientConnection.burst": {holds: numbers,
			become: none("three watches, and an Event now and then, need no limit of their own")},

		"logging.format":         {become: (*conversion).logFormat},
		"logging.verbosity":      {holds: numbers, become: (*conversion).logVerbosity},
		"logging.flushFrequency": {holds: anything, become: none("the log is not buffered")},
		"logging.vmodule":        {holds: anything, become: none("levels are of the whole log, not of files")},
		"logging.options": {holds: anything,
			become: none("the log is one stream, on standard error, not buffered")},
	}
	for _, more := range []map[string]rule{kernelRules(), conntrackRules(), otherRules()} {
		maps.Copy(table, more)
	}
	return table
}

// kernelRules has the sections of the three modes.
func kernelRules() map[string]rule {
	const period = "there are no periods: a change is applied as soon as it arrives, and nothing is written again " +
		"periodically"
	table := map[string]rule{
		"iptables.localhostNodePorts": {holds: flags, zeroIsSet: true, of: modeIPTables,
			become: none("node ports on 127.0.0.1 are of the node's own processes, which stay with kube-proxy; " +
				"nothing from outside may use that address")},
		"ipvs.scheduler": {of: modeIPVS, become: (*conversion).scheduler},
		"ipvs.strictARP": {holds: flags, of: modeIPVS,
			become: none("Sluice puts no VIP on an interface (there is no kube-ipvs0), so the node never answers ARP " +
				"for one; " +
				"arp_ignore and arp_announce stay as they are")},
		"ipvs.excludeCIDRs": {holds: lists, of: modeIPVS,
			become: none("Sluice makes no IPVS services and removes none")},
		"ipvs.tcpTimeout": {holds: durations, of: modeIPVS, become: timeout("established",
			"IPVS's own, beside conntrack's; the shorter of the two ended a flow")},
		"ipvs.tcpFinTimeout": {holds: durations, of: modeIPVS,
			become: timeout("finWait",
				"of one FIN; once both were seen tuning.timeWaitBackend holds, or a constant (docs/tuning.md, "+
					"Timeouts)")},
		"ipvs.udpTimeout": {holds: durations, of: modeIPVS, become: timeout("udpReplied",
			"before a reply flows.timeouts.udpUnreplied holds, which IPVS does not know")},
	}
	for _, mode := range []string{modeIPTables, modeIPVS, modeNFTables} {
		table[mode+".syncPeriod"] = rule{holds: durations, of: mode, become: none(period)}
		table[mode+".minSyncPeriod"] = rule{holds: durations, of: mode, become: none(period)}
	}
	// IPVS has no fields for masquerading and reads the fields of iptables (k8s.io/kubernetes
	// pkg/proxy/apis/config/v1alpha1 conversion.go).
	for section, of := range map[string]string{modeIPTables: modeIPTables + " or " +
		modeIPVS, modeNFTables: modeNFTables} {
		table[section+".masqueradeBit"] = rule{holds: numbers, zeroIsSet: true, of: of,
			become: none("packets are not marked: the source is translated where the backend is chosen")}
		table[section+".masqueradeAll"] = rule{holds: flags, of: of, become: (*conversion).masqueradeAll}
	}
	return table
}

// conntrackRules has the fields about flows.
func conntrackRules() map[string]rule {
	return map[string]rule{
		"conntrack.maxPerCore": {holds: numbers, zeroIsSet: true, become: (*conversion).conntrackMax},
		"conntrack.min":        {holds: numbers, zeroIsSet: true, become: (*conversion).conntrackMax},
		"conntrack.tcpEstablishedTimeout": {holds: durations, zeroIsSet: true,
			become: timeout("established", "")},
		"conntrack.tcpCloseWaitTimeout": {holds: durations, zeroIsSet: true,
			become: timeout("finWait",
				"conntrack has it for a FIN of the side that accepted (CLOSE_WAIT), and its FIN_WAIT for the other; "+
					"here it is both")},
		"conntrack.tcpBeLiberal": {holds: flags,
			become: none("sequence numbers are not tracked: every packet of a known flow is translated, as if this " +
				"were always on")},
		"conntrack.udpTimeout":       {holds: durations, become: timeout("udpUnreplied", "")},
		"conntrack.udpStreamTimeout": {holds: durations, become: timeout("udpReplied", "")},
	}
}

// otherRules has the fields that are not for Linux, and fields of former versions.
func otherRules() map[string]rule {
	table := map[string]rule{
		"windowsRunAsService": {holds: flags, become: none("it is of Windows nodes")},
		"winkernel":           {holds: anything, become: none("it is of Windows nodes")},
	}
	for path, since := range map[string]string{
		"udpIdleTimeout": "was of the userspace mode", "resourceContainer": "has no effect",
		"conntrack.max": "was replaced by maxPerCore and min",
	} {
		table[path] = rule{holds: anything, become: none(fmt.Sprintf("kube-proxy itself no longer has it; it %s",
			since))}
	}
	return table
}
