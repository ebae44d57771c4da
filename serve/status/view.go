package status

import (
	"net/netip"
	"strings"
	"time"
)

// Traffic counts packets and bytes of both directions, and flows, since the start.
type Traffic struct {
	Flows          uint64 `json:"flows"` // created
	ToBackend      uint64 `json:"toBackend"`
	ToBackendBytes uint64 `json:"toBackendBytes"`
	ToClient       uint64 `json:"toClient"`
	ToClientBytes  uint64 `json:"toClientBytes"`
}

// TakeOverView describes how a process took over from another one, or why it did not.
type TakeOverView struct {
	From string `json:"from,omitempty"` // version of the previous process
	// At is when the previous process's workers stopped, and Gap how long packets then waited until
	// this process's workers ran. Zero if it did not hand over.
	At        time.Time `json:"at,omitzero"`
	GapMicros int64     `json:"gapMicros"`
	Flows     uint64    `json:"flows"`   // live ones
	Packets   uint64    `json:"packets"` // packets that waited in its rings and queues
	Refused   []string  `json:"refused,omitempty"`
	Unable    string    `json:"unable,omitempty"`        // why this process itself cannot take over
	Asked     int       `json:"asked,omitempty"`         // number of refused requests
	NotHanded []string  `json:"notHandedOver,omitempty"` // parts that begin again
}

// ServiceView is one served port of a Kubernetes Service.
type ServiceView struct {
	Namespace string         `json:"namespace"`
	Name      string         `json:"name"`
	PortName  string         `json:"portName,omitempty"`
	Protocol  string         `json:"protocol"` // TCP, UDP
	Port      uint16         `json:"port"`
	Frontends []FrontendView `json:"frontends"`
	// Scheduler chooses among the backends: maglev, rr, wrr, lc, ...
	Scheduler string `json:"scheduler"`
	// AffinitySeconds is the time for which a client keeps its backend; 0: no affinity.
	AffinitySeconds uint32 `json:"affinitySeconds,omitempty"`
	// ExternalPolicy and InternalPolicy are the traffic policies: Cluster or Local. The internal
	// one applies to ClusterIP frontends.
	ExternalPolicy string `json:"externalPolicy"`
	InternalPolicy string `json:"internalPolicy"`
	// Topology4 and Topology6 are the hints that policy Cluster follows: node, zone, or none.
	Topology4 string `json:"topologyIPv4,omitempty"`
	Topology6 string `json:"topologyIPv6,omitempty"`
	// Forwarding is direct if the backends are nodes, which get packets untranslated in a tunnel
	// and answer clients directly; routed if backends get clients' addresses by policy Cluster.
	Forwarding string `json:"forwarding,omitempty"`
	// ProxyProtocol is the version of the header in front of TCP clients' bytes: v2, or none.
	ProxyProtocol string `json:"proxyProtocol,omitempty"`
	// Limits are the limits in force; nil if there are none.
	Limits *LimitsView `json:"limits,omitempty"`
	// Backends counts the known endpoints of both families, Usable the endpoints that get new
	// flows.
	Backends int     `json:"backends"`
	Usable   int     `json:"usable"`
	Traffic  Traffic `json:"traffic"`
}

// LimitsView has a service port's limits; 0: no limit. Open is the number of connections that count
// towards them.
type LimitsView struct {
	SourceConnections    uint32 `json:"connectionsPerSource,omitempty"`
	SourceNewConnections uint32 `json:"newConnectionsPerSource,omitempty"`
	Connections          uint32 `json:"connections,omitempty"`
	NewConnections       uint32 `json:"newConnections,omitempty"`
	Open                 uint32 `json:"open"`
}

// FrontendView is one address and port to which clients of a service send.
type FrontendView struct {
	Address    string `json:"address"` // addr:port; a node port has its family's zero address
	Kind       string `json:"kind"`    // LoadBalancer, ExternalIP, NodePort, ClusterIP
	KeepClient bool   `json:"keepClient,omitempty"`
	// Usable is the number of usable backends, Slots the size of the scheduler's table; 0 without a
	// table.
	Usable int `json:"usable"`
	Slots  int `json:"slots"`
	// Empty is the answer to new flows without a usable backend: reject or drop.
	Empty string `json:"empty,omitempty"`
	// Pods is the rule for clients inside the cluster, if it differs.
	Pods *RuleView `json:"pods,omitempty"`
	// SourceRanges are the clients that may use it, at most a hundred ranges, and MoreSourceRanges
	// the number of others; if it is empty, all clients may.
	SourceRanges     []string `json:"sourceRanges,omitempty"`
	MoreSourceRanges int      `json:"moreSourceRanges,omitempty"`
}

// RuleView is the rule for new flows of one kind of client; see FrontendView.
type RuleView struct {
	KeepClient bool   `json:"keepClient,omitempty"`
	Usable     int    `json:"usable"`
	Slots      int    `json:"slots"`
	Empty      string `json:"empty,omitempty"`
}

// BackendView is one endpoint of one service port.
type BackendView struct {
	Address   netip.AddrPort `json:"address"`
	Protocol  string         `json:"protocol"`
	Namespace string         `json:"namespace"`
	Service   string         `json:"service"`
	PortName  string         `json:"portName,omitempty"`
	Port      uint16         `json:"port"` // of the service
	// State is ready, drained, terminating (and serving), gone (no longer serving), unready.
	State string `json:"state"`
	Local bool   `json:"local,omitempty"`
	// Weight is its share of new flows relative to the others'.
	Weight uint16 `json:"weight"`
	// Hints: its topology hints name this node ("node") or this node's zone ("zone").
	Hints []string `json:"hints,omitempty"`
	// NewFlows: it gets new flows; only from pods, if PodsOnly. Why is the reason if it does not,
	// or if it does although it terminates.
	NewFlows bool   `json:"newFlows"`
	PodsOnly bool   `json:"podsOnly,omitempty"`
	Why      string `json:"why,omitempty"`
	// Health has the result of this gateway's checks; nil if it is not checked.
	Health  *CheckView `json:"health,omitempty"`
	NextHop string     `json:"nextHop,omitempty"` // interface and MAC, host link, or why there is none
	// Connections counts the open flows, by which the schedulers lc, wlc, sed and nq choose.
	Connections int32   `json:"connections"`
	Traffic     Traffic `json:"traffic"`
}

// SourcePortsView has, for one family and protocol, the backends with the highest use of source
// ports. A backend here is an address and port, for all Services that have it as an endpoint, as
// seen from one source address. Both are zero if no flow has a source port of the gateway.
type SourcePortsView struct {
	Family   string `json:"family"`   // ipv4, ipv6
	Protocol string `json:"protocol"` // TCP, UDP, SCTP
	// MostUsed has the largest UsedRatio, LeastAvailable the largest UnavailableRatio.
	MostUsed       BackendPortsView `json:"mostUsed"`
	LeastAvailable BackendPortsView `json:"leastAvailable"`
}

// BackendPortsView counts the source ports towards one backend from one source address.
type BackendPortsView struct {
	Backend netip.AddrPort `json:"backend"`
	Source  netip.Addr     `json:"source"`
	Ports   int            `json:"ports"` // all
	Used    int            `json:"used"`  // by a flow
	// Unavailable ports are used by flows that never share them with a new flow, even if none is
	// free.
	Unavailable int `json:"unavailable"`
}

// UsedRatio returns Used / Ports, from 0 to 1; 0 if there are no ports.
func (b *BackendPortsView) UsedRatio() float64 { return float64(b.Used) / float64(max(1, b.Ports)) }

// UnavailableRatio returns Unavailable / Ports, from 0 to 1; 0 if there are no ports.
func (b *BackendPortsView) UnavailableRatio() float64 {
	return float64(b.Unavailable) / float64(max(1, b.Ports))
}

// CheckView has the result of this gateway's checks of an endpoint.
type CheckView struct {
	Check   string `json:"check"`             // short form, such as "http /healthz"
	Passive bool   `json:"passive,omitempty"` // checked because clients got no answer from it
	Down    bool   `json:"down"`
	// Since is when it went down or came up, Last the result of the last check, at At.
	Since time.Time `json:"since,omitzero"`
	Last  string    `json:"last,omitempty"`
	At    time.Time `json:"at,omitzero"`
	// SlowStart is the share of its weight in percent during a slow start.
	SlowStart int `json:"slowStart,omitempty"`
}

// DenialView is an entry of the list of denied clients.
type DenialView struct {
	Client netip.Prefix `json:"client"`
	// Until is when the entry ends; zero: never.
	Until time.Time `json:"until,omitzero"`
	From  string    `json:"from"` // DeniedByConfiguration or DeniedByOperator
	// Packets is the number of dropped packets that no longer prefix of the list has.
	Packets uint64 `json:"packets"`
}

// The origins of entries.
const (
	DeniedByConfiguration = "configuration"
	DeniedByOperator      = "operator"
)

// DeniedView is the result of denying a client.
type DeniedView struct {
	DenialView
	Flows int `json:"flows"` // of the client, ended
	// Notes name addresses of the node and endpoints in the prefix, and which of their packets are
	// not dropped.
	Notes []string `json:"notes,omitempty"`
}

// EventView is an event of the journal: a line of the daemon's log of level info or above.
type EventView struct {
	// Time identifies the event. It is later than the time of the event before, unless the wall
	// clock has stepped back.
	Time    time.Time `json:"time"`
	Level   string    `json:"level"` // INFO, WARN, ERROR
	Message string    `json:"message"`
	// Details are the fields of the log line.
	Details map[string]string `json:"details,omitempty"`
}

// CheckedEndpoint names an endpoint of a service port.
type CheckedEndpoint struct {
	Namespace, Service, PortName, Protocol string
	Address                                netip.AddrPort
}

// FlowTraffic counts the packets of a flow, and the bytes of their frames, as they arrived.
type FlowTraffic struct {
	ToBackend      uint64 `json:"toBackend"`
	ToBackendBytes uint64 `json:"toBackendBytes"`
	ToClient       uint64 `json:"toClient"`
	ToClientBytes  uint64 `json:"toClientBytes"`
}

// FlowView is one flow. For ICMP echo the ports hold the identifier.
type FlowView struct {
	Protocol string         `json:"protocol"`
	State    string         `json:"state"`
	Client   netip.AddrPort `json:"client"`
	VIP      netip.AddrPort `json:"vip"`
	SNAT     netip.AddrPort `json:"snat"` // the client's address if it is kept
	Backend  netip.AddrPort `json:"backend"`
	Service  string         `json:"service,omitempty"` // namespace/name, with :port-name if it has one
	// Forwarding is direct for a flow with direct return: Backend is a node and the frontend's
	// port, and State follows from the client's packets alone.
	Forwarding string `json:"forwarding,omitempty"`
	// ProxyHeader is the state of the PROXY header: waiting (for the handshake), sent,
	// acknowledged; datagrams if each one of UDP has a header. It is empty if the flow has none.
	ProxyHeader string `json:"proxyHeader,omitempty"`
	// Group is the protection of the flow by copies at other gateways of the group: protected;
	// pending (one has not acknowledged it yet, or not its last change); copy (of another gateway's
	// flow); or the reason that they have none: no_member, refused, no_answer (of the backend yet),
	// node_port, host_link, client_address (the backend gets it), direct_return, no_source (of the
	// group). It is empty if the gateway is in no group.
	Group string `json:"group,omitempty"`
	// Owner is the gateway that has the flow, if this one is a copy.
	Owner string `json:"owner,omitempty"`
	// Start is when the flow began; zero if it is not known, or if there is no flow log.
	Start time.Time `json:"start,omitzero"`
	// Traffic is nil if packets were not counted from the start of the flow on.
	Traffic *FlowTraffic `json:"traffic,omitempty"`
	// IdleSeconds is the time since the last packet, ExpiresSeconds the time until the flow ends
	// without one.
	IdleSeconds    int64 `json:"idleSeconds"`
	ExpiresSeconds int64 `json:"expiresSeconds"`
}

// GroupCopy is the Group of a copy.
const GroupCopy = "copy"

// WorkerView has the counters of one worker (stats.Block).
type WorkerView struct {
	Worker       int    `json:"worker"`
	CPU          int    `json:"cpu"` // -1 if it is not pinned; workers of one CPU take turns
	Rx           uint64 `json:"rx"`
	RxBytes      uint64 `json:"rxBytes"`
	Tx           uint64 `json:"tx"`
	TxBytes      uint64 `json:"txBytes"`
	Generated    uint64 `json:"generated"`
	Returned     uint64 `json:"returned"`
	Held         int64  `json:"held"`
	Dropped      uint64 `json:"dropped"`
	KernelRx     uint64 `json:"kernelRx"`
	FlowsCreated uint64 `json:"flowsCreated"`
	// FlowsRetried counts flows that got another backend, because theirs did not answer.
	FlowsRetried  uint64 `json:"flowsRetried"`
	EchoReplies   uint64 `json:"echoReplies"`
	ProxyHeaders  uint64 `json:"proxyHeaders"`
	ICMPLimited   uint64 `json:"icmpLimited"`
	Resets        uint64 `json:"resets"`
	ResetsLimited uint64 `json:"resetsLimited"`
	// WrongChecksums and UnfinishedChecksums count segments that were forwarded but changed no
	// flow, because their checksum was wrong, or unfinished because a device should have computed
	// it.
	WrongChecksums      uint64 `json:"wrongChecksums"`
	UnfinishedChecksums uint64 `json:"unfinishedChecksums"`
	Batches             uint64 `json:"batches"`
	Polls               uint64 `json:"polls"`
	BusyNanos           uint64 `json:"busyNanos"` // on packets
	IdleNanos           uint64 `json:"idleNanos"` // asleep; the rest of the time was spent spinning
	// Load is the share of its time that the worker has spent on packets in this process.
	Load float64 `json:"load"`
	// Generation is the oldest snapshot the worker may still use; 0 while Asleep or waking.
	Generation uint64 `json:"generation"`
	Asleep     bool   `json:"asleep"`
	// PulseNanos is the time since the last pass of the loop; -1 before the first.
	PulseNanos int64             `json:"pulseNanos"`
	Drops      map[string]uint64 `json:"drops"` // by reason, without reasons that did not occur
	PacketLaw  PacketLaw         `json:"packetLaw"`
	FrameLaw   FrameLaw          `json:"frameLaw"`
}

// PacketLaw compares the packets that arrived with the packets accounted for. The two are equal
// between batches; during a batch they may differ by one batch.
type PacketLaw struct {
	In        uint64 `json:"in"`        // received + generated
	Accounted uint64 `json:"accounted"` // transmitted + returned + dropped + held
	Holds     bool   `json:"holds"`
}

// FrameLaw has the places of the frames of a worker's UMEM.
type FrameLaw struct {
	Total uint64 `json:"total"`
	Free  uint64 `json:"free"`
	Links uint64 `json:"links"`
	Held  uint64 `json:"held"`
	Holds bool   `json:"holds"`
}

// FlowTableView is one family's flow table.
type FlowTableView struct {
	Family   string            `json:"family"` // ipv4, ipv6
	Capacity uint64            `json:"capacity"`
	Used     uint64            `json:"used"`
	HalfOpen uint64            `json:"halfOpen"`
	States   map[string]uint64 `json:"states"`
	// Counters has the counters of this family alone, by name: created.
	Counters map[string]uint64 `json:"counters,omitempty"`
}

// StatsView has all counters.
type StatsView struct {
	Workers []WorkerView    `json:"workers"`
	Flows   []FlowTableView `json:"flows"`
	// FlowEvents has the counters of both families together, by name: shed_*, refused_*,
	// limit_sources_*.
	FlowEvents map[string]uint64 `json:"flowEvents"`
	Steering   map[string]uint64 `json:"steering"` // the kernel program's counters, by name
	Queues     []QueueStatsView  `json:"queues"`
	Snapshot   SnapshotView      `json:"snapshot"`
	// Stalled are the loops, other than workers, that have stalled for so long that the daemon must
	// be restarted.
	Stalled []string `json:"stalled,omitempty"`
}

// QueueStatsView has the kernel's counters of one AF_XDP socket (struct xdp_statistics).
type QueueStatsView struct {
	Interface       string `json:"interface"`
	Queue           int    `json:"queue"`
	RxDropped       uint64 `json:"rxDropped"`       // no frame in the fill ring, or the packet was too large
	RxRingFull      uint64 `json:"rxRingFull"`      // the worker was too slow
	RxFillRingEmpty uint64 `json:"rxFillRingEmpty"` // times the kernel found no frame
	RxInvalidDescs  uint64 `json:"rxInvalidDescs"`
	TxInvalidDescs  uint64 `json:"txInvalidDescs"`
	TxRingEmpty     uint64 `json:"txRingEmpty"`
}

// SnapshotView is the progress of the table of services.
type SnapshotView struct {
	Published   uint64    `json:"published"` // generation in the handle
	PublishedAt time.Time `json:"publishedAt,omitzero"`
	Steered     uint64    `json:"steered"` // generation in the kernel program
	Seen        uint64    `json:"seen"`    // by the slowest worker that is awake; Published if all sleep
	Services    int       `json:"services"`
	Frontends   int       `json:"frontends"`
	Backends    int       `json:"backends"`
}

// StatusView compares the applied objects with the objects that were read.
type StatusView struct {
	Node      string    `json:"node"`
	PID       int       `json:"pid"`
	StartedAt time.Time `json:"startedAt"`
	Version   Build     `json:"version"`
	// Ready is the answer of /readyz; NotReady has the reasons if it is not.
	Ready    bool     `json:"ready"`
	NotReady []string `json:"notReady,omitempty"`
	Draining bool     `json:"draining"`
	// Applied: everything read so far is published, steered, and seen by every worker.
	Applied bool       `json:"applied"`
	Frames  FramesView `json:"frames"`
	// Places are the CPUs with workers; empty before the first packet can be forwarded.
	Places   []PlaceView  `json:"places"`
	Config   ConfigView   `json:"config"`
	Snapshot SnapshotView `json:"snapshot"`
	// TakeOver describes how this process took over from the previous one; nil if it did not try.
	TakeOver   *TakeOverView   `json:"takeOver,omitempty"`
	Group      *GroupView      `json:"group,omitempty"`
	Sources    []SourceView    `json:"sources"`
	Problems   []ProblemView   `json:"problems"`
	Interfaces []InterfaceView `json:"interfaces"`
	Conditions []ConditionView `json:"conditions"`
	// FlowLog is the flow log; nil if there is none.
	FlowLog *FlowLogView `json:"flowLog,omitempty"`
}

// FlowLogView is the flow log. Written and Lost are numbers of lines since the start.
type FlowLogView struct {
	Directory string `json:"directory"`
	Written   uint64 `json:"written"`
	Lost      uint64 `json:"lost"`
}

// FramesView is the size of the frames of packet memory.
type FramesView struct {
	Bytes  int    `json:"bytes"`
	Reason string `json:"reason"`
}

// PlaceView is a CPU with the workers that take turns on it, on one thread.
type PlaceView struct {
	CPU     int    `json:"cpu"` // -1: any
	Workers []int  `json:"workers"`
	Why     string `json:"why"` // why they run there
	// Waiting describes how they wait for packets, and why.
	Waiting string `json:"waiting"`
	// Arrive: packets arrive on this CPU, so the kernel's receive work uses part of it.
	Arrive bool `json:"arrive"`
	// ShortSlice: the thread has a time slice of 100 us or is a real-time thread, so it does not
	// wait long for other threads.
	ShortSlice bool `json:"shortSlice"`
	// WaitedPercent is the part of the last second in which the thread could run while others ran.
	WaitedPercent float64 `json:"waitedPercent"`
}

// ConfigView is the state of the configuration file.
type ConfigView struct {
	File     string    `json:"file"`
	LoadedAt time.Time `json:"loadedAt"`
	// Error is why the present file is rejected; the last valid configuration stays in force.
	Error string `json:"error,omitempty"`
	// NeedRestart are changes in the file that only a restart applies.
	NeedRestart []string `json:"needRestart,omitempty"`
}

// SourceView is one source of objects.
type SourceView struct {
	Name    string    `json:"name"` // such as manifests:/etc/sluice/manifests
	Synced  bool      `json:"synced"`
	Read    uint64    `json:"read"`    // revision read last
	Applied uint64    `json:"applied"` // revision that is published and steered
	ReadAt  time.Time `json:"readAt,omitzero"`
	Objects int       `json:"objects"`
	Error   string    `json:"error,omitempty"`
}

// ProblemView is one object that is not served as it is written.
type ProblemView struct {
	Source  string    `json:"source"` // config, manifests, services, neighbours, ...
	Object  string    `json:"object"` // such as Service default/web, with the file if there is one
	Field   string    `json:"field,omitempty"`
	Message string    `json:"message"`
	Since   time.Time `json:"since,omitzero"`
	// Serving: the object's last good version is served meanwhile.
	Serving bool `json:"serving"`
	// Warning: the object is served, but perhaps not as its author intended.
	Warning bool `json:"warning,omitempty"`
}

// InterfaceView is one link that workers use.
type InterfaceView struct {
	Name   string      `json:"name"`
	Driver string      `json:"driver,omitempty"`
	Up     bool        `json:"up"`
	MTU    int         `json:"mtu"`
	Mode   string      `json:"mode"`   // native, generic
	Reason string      `json:"reason"` // why this mode
	Queues []QueueView `json:"queues"`
	// Settings are the settings that `interfaces[].napi` changed, with the kernel's names, as read
	// back from it. Refused are settings that the kernel rejected, and why.
	Settings map[string]string `json:"settings,omitempty"`
	Refused  []string          `json:"refused,omitempty"`
}

// QueueView is one AF_XDP socket.
type QueueView struct {
	Queue    int    `json:"queue"`
	Worker   int    `json:"worker"`
	Bound    bool   `json:"bound"`
	ZeroCopy bool   `json:"zeroCopy"`
	Reason   string `json:"reason"` // why copy, or why not bound
	// TxBudget is the number of packets that one system call sends in copy mode.
	TxBudget int `json:"txBudget,omitempty"`
	// BusyPollMicros is 0 if the worker does not poll the NIC itself.
	BusyPollMicros int `json:"busyPollMicros,omitempty"`
	BusyPollBudget int `json:"busyPollBudget,omitempty"`
	// Refused are settings of `sockets` that the kernel rejected, and why.
	Refused []string `json:"refused,omitempty"`
}

// SocketMode returns the mode of the socket: zero-copy, copy, or not bound.
func (q *QueueView) SocketMode() string {
	switch {
	case !q.Bound:
		return "not bound"
	case q.ZeroCopy:
		return "zero-copy"
	}
	return "copy"
}

// Why returns the reasons for the program's mode and for the mode of a socket. If both have the
// same text, as when the driver has native XDP and zero-copy, or a whole interface is closed, it
// returns the text once.
func (v *InterfaceView) Why(q *QueueView) string {
	var said []string
	say := func(mode, reason string) {
		switch {
		case reason == "":
		case mode == "":
			said = append(said, reason)
		default:
			said = append(said, mode+": "+reason)
		}
	}
	if v.Mode != "" || v.Reason != q.Reason {
		say(v.Mode, v.Reason)
	}
	say(q.SocketMode(), q.Reason)
	return strings.Join(said, "; ")
}

// Names of conditions about settings of the configuration that are not in force unless the
// condition is ok.
const (
	DenyCondition    = "deny"
	ReadersCondition = "readers"
	// CertificateCondition is about a certificate that ends soon, or whose files cannot be used.
	CertificateCondition = "certificate"
)

// ConditionView is a state that an operator should know and that does not end the daemon, such as a
// taken port, a detached program or a stalled worker.
type ConditionView struct {
	Name   string    `json:"name"`
	Level  string    `json:"level"` // ok, warn, fail
	Detail string    `json:"detail"`
	Since  time.Time `json:"since,omitzero"`
}
