package conformance

import (
	"slices"
	"strings"
)

// difference is an outcome that kube-proxy has and Sluice has not, on purpose.
type difference struct {
	where string // case and probe, as result.key has them
	// The outcome there; empty where it does not differ, or where the case is not run.
	nftables, iptables, ipvs string
	why                      string // and where it is decided
}

// in is the outcome in a mode.
func (d *difference) in(mode string) string {
	switch mode {
	case iptables:
		return d.iptables
	case ipvs:
		return d.ipvs
	}
	return d.nftables
}

// Modes of kube-proxy, the columns of the table.
const nftables, iptables, ipvs = "nftables", "iptables", "ipvs"

var modes = [...]string{nftables, iptables, ipvs}

// Why Sluice differs, and where that is decided.
const (
	whyPing     = "VIPs answer ping (ADR 6)"
	whyUnused   = "Sluice does not know the service range; routes may use it otherwise (ADR 6)"
	whyUnserved = "other ports of a ClusterIP are treated as those of a VIP: `unservedVIPPort` (ADR 6)"
	whyHostLink = "endpoints on the gateway are reached by the host link; policy Cluster translates for all " +
		"endpoints alike (ADR 6)"
	whyIllegal = "an endpoint that is a VIP of this gateway is refused; kube-proxy forwards connections to it " +
		"(docs/kubernetes.md, EndpointSlice)"
	whyForged = "a packet from the wire whose source is its destination is dropped, as land_attack " +
		"(docs/counters.md)"
	whyZero = "kube-proxy 1.36 keeps UDP flows to the last endpoint of a Service after its end (kubernetes issue " +
		"139628; docs/kubernetes.md, Different on purpose)"
	whyDeleted = "UDP flows end with their endpoint, also when the Service goes (ADR 6)"
	whyServing = "UDP flows of an endpoint that is ready and not serving stay (docs/kubernetes.md, Different on " +
		"purpose)"
	whyDenied  = "a client outside the source ranges gets no answer, endpoints or not (ADR 6)"
	whyNotOurs = "packets to an address that nodeAddresses does not select pass to the kernel (ADR 6)"
	whyChoice  = "kube-proxy does not read Sluice's annotations (docs/kubernetes.md, Choosing a backend)"
	whyHairpin = "the address of a client that is its own endpoint is translated; modes nftables and ipvs do so for " +
		"endpoints on the node only, and other such connections hang (ADR 6)"
	whyVIPPort = "packets to a port of a VIP without a Service are refused, as in mode ipvs (`unservedVIPPort`); the " +
		"other modes send them back to the router (ADR 28)"
	whyLives = "while a connection through a VIP is open, no packet for the VIP is sent back to the router, even " +
		"without a Service (docs/limits.md)"
	whyEnded = "in mode ipvs flows end with their frontend; here they continue, as in the other modes, except UDP " +
		"flows of a deleted Service (docs/kubernetes.md, any of it changes)"
	whyForward = "mode ipvs forwards to endpoints on other nodes; the connection breaks if they do not answer " +
		"through the gateway (ADR 6)"
	whyPods = "mode ipvs has one set of endpoints for a frontend, so policy Local holds for pods, too " +
		"(docs/kubernetes.md, Service)"
	whyFrontend = "in mode ipvs each frontend has an affinity of its own (docs/kubernetes.md, Where kube-proxy's " +
		"modes disagree)"
	whyRetry = "a SYN that nobody answers goes to another endpoint (docs/kubernetes.md, Different on purpose)"
	whyPorts = "a frontend among the gateway's own source ports is refused (docs/kubernetes.md, Different on purpose)"
)

// Why kube-proxy is not asked.
const (
	whyUndefined = "kube-proxy promises nothing here"
	whyNoTurns   = "kube-proxy chooses at random"
	whyNoRetry   = "kube-proxy gives no connection to another endpoint, and counts no late answers (ADR 6)"
)

// differences are all of them. A run fails if kube-proxy's outcome differs from Sluice's and is not
// listed, or differs from the listed one.
var differences = []difference{
	{"Service/spec.clusterIP, clusterIPs/one-family: tcp outside to ClusterIP (IPv6)", drop, "", "", whyUnused},
	{"Service/... with an address of this node in it/vip-as-source: syn the VIP itself to VIP", "b0 from gateway",
		"b0 from gateway", "", whyForged},
	{"EndpointSlice/... of this node/host-network: tcp outside to VIP, node port", "local from client",
		"local from client", "", whyHostLink},
	{"EndpointSlice/... of this node/host-network: tcp outside to VIP (IPv6)", "local from client", "local from client",
		"", whyHostLink},
	{"EndpointSlice/... of this node/host-network: udp outside to VIP", "local from client", "local from client", "",
		whyHostLink},
	{"EndpointSlice/... of this node/host-network: tcp pod to VIP", "local from client", "local from client", "",
		whyHostLink},
	{itsOwnVIP + "tcp outside to VIP", "b0 beyond from gateway", "b0 beyond from gateway", "", whyIllegal},
	{itsOwnVIP + "tcp outside to VIP (IPv6)", "b0 beyond from gateway", "b0 beyond from gateway", "", whyIllegal},
	{"Established flows/service goes to zero endpoints/slice-empty: no endpoint: udp outside to VIP, flow udp",
		"b0 from gateway", "b0 from gateway", "", whyZero},
	{"Established flows/service goes to zero endpoints/slice-empty: no endpoint: udp outside to VIP (IPv6), flow udp6",
		"b0 from gateway", "b0 from gateway", "", whyZero},
	{readyNotServing + "udp outside to VIP, flow udp", "b0 b1 from gateway", "b0 b1 from gateway", "", whyServing},
	{readyNotServing + "udp outside to VIP (IPv6), flow udp6", "b0 b1 from gateway", "b0 b1 from gateway", "",
		whyServing},
	{"Where kube-proxy's modes disagree/source not allowed, and no endpoints/drop: tcp other to VIP", "", reject, "",
		whyDenied},
	{"Where kube-proxy's modes disagree/node port without endpoints, on a local address that is not selected/pass: " +
		"tcp outside to node port of an address not selected", "", reject, "", whyNotOurs},
	{serviceDeleted + "udp outside to VIP, flow udp", "b0 from gateway", "b0 from gateway", passRoute, whyDeleted},
	{serviceDeleted + "tcp outside to VIP", passRoute, passRoute, passRoute, whyLives},
	{serviceDeleted + "udp outside to VIP (IPv6)", passRoute, passRoute, passRoute, whyLives},
	{vipChanged + "tcp outside to VIP", passRoute, passRoute, passRoute, whyLives},
	{typeChanged + "tcp outside to VIP", passRoute, passRoute, "", whyLives},
	{labelAdded + "tcp outside to VIP", passRoute, passRoute, "", whyLives},
	{"Choosing a backend/sh, dh/sh: tcp outside to VIP", "several from gateway", "several from gateway", "", whyChoice},
	{"Choosing a backend/sh, dh/dh: tcp outside to VIP", "several from gateway", "several from gateway", "", whyChoice},
	{"Service/annotation sluice.dev/weights/zero: tcp outside to VIP", "b0 b1 from gateway", "b0 b1 from gateway", "",
		whyChoice},
	{"Service/annotation sluice.dev/weights/zero: tcp outside to VIP (IPv6)", "b0 b1 from gateway",
		"b0 b1 from gateway", "", whyChoice},
	{hairpinElsewhere + "tcp pod-b0 to VIP", drop, "", drop, whyHairpin},
	{hairpinElsewhere + "tcp pod-b0 to VIP (IPv6)", drop, "", drop, whyHairpin},
	{unusedClusterIP + "tcp outside to ClusterIP port 81", "", passRoute, "", whyUnserved},
	{unusedClusterIP + "tcp outside to ClusterIP (IPv6) port 81", "", passRoute, "", whyUnserved},
	{unusedClusterIP + "tcp outside to an unused ClusterIP", drop, "", "", whyUnused},
	{"Service/externalTrafficPolicy/local-none-here: tcp outside to VIP", "", "", "b0 b1 from client", whyForward},
	{"Service/externalTrafficPolicy/local-none-here: tcp outside to node port (IPv6)", "", "", "b0 b1 from client",
		whyForward},
	{"Service/externalTrafficPolicy/local-none-here: udp outside to VIP", "", "", "b0 b1 from client", whyForward},
	{"Service/internalTrafficPolicy/local-none-here: tcp outside to ClusterIP", "", "", "b0 b1 from gateway",
		whyForward},
	{"Service/internalTrafficPolicy/local-none-here: tcp pod to ClusterIP (IPv6)", "", "", "b0 b1 from client",
		whyForward},
	{portChanged + "tcp outside to VIP, flow tcp", "", "", passListen, whyEnded},
	{portChanged + "tcp outside to VIP (IPv6), flow tcp6", "", "", passListen, whyEnded},
	{portChanged + "udp outside to VIP, flow udp", "", "", reject, whyEnded},
	{portChanged + "udp outside to VIP (IPv6), flow udp6", "", "", reject, whyEnded},
	{portChanged + "tcp outside to VIP", passRoute, passRoute, "", whyVIPPort},
	{vipChanged + "tcp outside to VIP, flow tcp", "", "", broken, whyEnded},
	{vipChanged + "tcp outside to VIP (IPv6), flow tcp6", "", "", broken, whyEnded},
	{vipChanged + "udp outside to VIP, flow udp", "", "", passRoute, whyEnded},
	{vipChanged + "udp outside to VIP (IPv6), flow udp6", "", "", passRoute, whyEnded},
	{serviceDeleted + "tcp outside to VIP, flow tcp", "", "", broken, whyEnded},
	{serviceDeleted + "tcp outside to VIP (IPv6), flow tcp6", "", "", broken, whyEnded},
	{podsSkip + "tcp pod to VIP, node port, external IP", "", "", "b0 from client", whyPods},
	{podsSkip + "tcp pod to VIP (IPv6)", "", "", "b0 from client", whyPods},
	{podsSkip + "udp pod to VIP", "", "", "b0 from client", whyPods},
	{"Service/sessionAffinity: ClientIP/one-backend: tcp outside to VIP, node port, external IP, ClusterIP", "", "",
		"several from gateway or one from gateway", whyFrontend},
	{"Service/sessionAffinity: ClientIP/one-backend: udp outside to VIP, node port, external IP", "", "",
		"several from gateway or one from gateway", whyFrontend},
	{"Service/sessionAffinity: ClientIP/one-backend: tcp other to VIP (IPv6), node port (IPv6), external IP (IPv6), " +
		"ClusterIP (IPv6)", "", "", "several from gateway or one from gateway", whyFrontend},
	{"Service/sessionAffinity: ClientIP/policy-local: tcp outside to VIP, node port", "", "",
		"several from client or one from client", whyFrontend},
	{unknownVIPPort + "tcp outside to VIP port 81", passRoute, passRoute, "", whyVIPPort},
	{unknownVIPPort + "tcp outside to VIP (IPv6) port 81", passRoute, passRoute, "", whyVIPPort},
	{unknownVIPPort + "tcp outside to external IP port 81", passRoute, passRoute, "", whyVIPPort},
	{unknownVIPPort + "udp outside to VIP port 81", passRoute, passRoute, "", whyVIPPort},
	{ping + "VIP", drop, drop, reject, whyPing},
	{ping + "VIP (IPv6)", drop, drop, reject, whyPing},
	{ping + "ClusterIP", reject, drop, reject, whyPing},
	{ping + "external IP", drop, drop, reject, whyPing},
	{"Different on purpose/An unanswered SYN/another-endpoint: tcp outside to VIP", "b0 from gateway; drop",
		"b0 from gateway; drop", "", whyRetry},
	{"Different on purpose/A frontend among the gateway's own source ports/refused: tcp outside to the node's " +
		"address port 17000", "b0 from gateway", "b0 from gateway", "b0 from gateway", whyPorts},
}

// broken is a client's error when it writes to a TCP flow that was reset.
const broken = "broken pipe"

// Beginnings of keys.
const (
	itsOwnVIP = "EndpointSlice/... that cannot be a destination, or that is a VIP or source address of this " +
		"gateway/its-own-vip: "
	readyNotServing = "Different on purpose/UDP flows of an endpoint that is ready and not serving stay/udp: b0 " +
		"does not serve, and is ready; b1 serves: "
	hairpinElsewhere = "Whose address/a client that is the very endpoint it got/pod-elsewhere: "
	unusedClusterIP  = "Where kube-proxy's modes disagree/unknown port of a ClusterIP, unused ClusterIP/default: "
	portChanged      = "Service/any of it changes/port: port 81 instead: "
	vipChanged       = "Service/any of it changes/vip: other VIPs: "
	typeChanged      = "Service/any of it changes/type: ClusterIP instead of LoadBalancer: "
	labelAdded       = "Service/label service.kubernetes.io/service-proxy-name/present-removed-added: label added: "
	serviceDeleted   = "Established flows/service deleted/service-deleted: the Service and its slices are deleted: "
	unknownVIPPort   = "Where kube-proxy's modes disagree/unknown port of a VIP/default: "
	podsSkip         = "Service/... Local, and the client is a pod/pods-skip-the-policy: "
	ping             = "Different on purpose/VIPs answer ping/ping: ping outside to "
)

// key names a result among the results of all cases.
func (r *result) key() string { return r.c.ID() + ": " + r.String() }

// listedIn returns the differences of a mode by key.
func listedIn(mode string) map[string]difference {
	listed := map[string]difference{}
	for _, d := range differences {
		if d.in(mode) != "" {
			listed[d.where] = d
		}
	}
	return listed
}

// allows reports whether an outcome is one of the outcomes in want, with " or " between them: where
// a system chooses at random, the same client may get the same backend twice.
func allows(want, outcome string) bool {
	return slices.Contains(strings.Split(want, " or "), outcome)
}

// expected is what kube-proxy in a mode should make of a probe.
func expected(mode string) func(*result) string {
	listed := listedIn(mode)
	return func(r *result) string {
		if d, ok := listed[r.key()]; ok {
			return d.in(mode)
		}
		return r.p.want
	}
}
