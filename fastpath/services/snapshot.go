// Package services is the contract between the control loop and the workers: the Snapshot, an
// immutable table of services that is used for a whole batch of packets, and the Handle that swaps
// one Snapshot for the next.
//
//	Frontend  (address, protocol, port) that clients send to
//	   └─ Service   one port of a Kubernetes Service
//	        └─ EndpointSet   backends that may take new flows, and the scheduler's table
//	             └─ Backend   (address, port), by BackendRef
//
// Decide applies the rules to a new flow (decide.go), and Choose selects a backend of a set
// (schedule.go).
//
// A Builder makes a Snapshot from its predecessor. The two share every unchanged page, so a change
// costs no more than the pages it touches. After Build only Frontend.Turn is ever written: a worker
// loads the Handle once per batch and reads without locks.
package services

import (
	"sync/atomic"

	"sluice.dev/sluice/nat/header"
)

// BackendRef names a Backend across snapshots: a 20-bit index and a 12-bit generation. An index is
// used again, with the next generation, only after every worker has left the snapshots that had the
// old backend, and no flow counts in the old backend's load any more (control's identities). So a
// flow with an old ref finds no backend instead of a wrong one. Zero is no backend.
type BackendRef uint32

const (
	backendIndexBits = 20
	// MaxBackends bounds the backends of all services together.
	MaxBackends = 1 << backendIndexBits
	// BackendGenerations is the number of uses of an index after which its generation repeats.
	BackendGenerations = 1 << (32 - backendIndexBits)
)

// MakeBackendRef returns the ref of an index and a generation, which is never zero: no ref is zero.
func MakeBackendRef(index, generation uint32) BackendRef {
	return BackendRef(generation<<backendIndexBits | index&(MaxBackends-1))
}

// Index returns the backend's index in counters and pages.
func (r BackendRef) Index() uint32 { return uint32(r) & (MaxBackends - 1) }

// Generation returns the number of this use of the index.
func (r BackendRef) Generation() uint32 { return uint32(r) >> backendIndexBits }

// Backend is one endpoint of one service port. It has no pointers, so that the garbage collector
// skips up to a million of them.
type Backend struct {
	Addr    header.Addr
	Port    uint16
	Proto   uint8
	Flags   BackendFlags
	Ref     BackendRef
	Service ServiceID
	// Weight is its share of new flows relative to the other backends; 1 by default, and 0 for no
	// new flows.
	Weight uint16
}

// BackendFlags has an endpoint's conditions.
type BackendFlags uint8

const (
	// BackendServing: the endpoint still answers. UDP flows of an endpoint that does not are moved;
	// TCP flows continue in any case.
	BackendServing BackendFlags = 1 << iota
	// BackendReady: ready in the sense of discovery/v1.
	BackendReady
	// BackendTerminating: being deleted.
	BackendTerminating
	// BackendLocal: on this node.
	BackendLocal
	// BackendDrained: an operator excluded it from new flows.
	BackendDrained
	// BackendHintNode and BackendHintZone: its topology hints name this node, this
	// node's zone.
	BackendHintNode
	BackendHintZone
	// BackendDown: its health check fails. Sets leave it out, unless too many are down.
	BackendDown
)

// ServiceID is a service port's number in this process.
type ServiceID uint32

// Service is one port of a Kubernetes Service.
type Service struct {
	ID        ServiceID
	Namespace string
	Name      string
	PortName  string
	Proto     uint8
	Port      uint16
	// Backends has all endpoints of the port, including endpoints that take no new flows: IPv4
	// before IPv6, each in order of address and port (Find).
	Backends []BackendRef
	// Identity is the key of affinity pins. It is the same for this service port in every process
	// and on every gateway.
	Identity uint64
	// AffinitySeconds is the time after a client's last new flow for which it keeps its backend
	// (sessionAffinity ClientIP); 0 is no affinity.
	AffinitySeconds uint32
	// Scheduler chooses among a set's backends.
	Scheduler Scheduler
	// ProxyProtocol: backends get a header of the PROXY protocol, version 2, in front of each TCP
	// client's bytes, or in each datagram of a UDP client.
	ProxyProtocol bool
	// Direct: Backends are nodes. They get the clients' packets untranslated in a tunnel, and
	// answer clients directly. Each Backend has the node's address and the service port's number,
	// and the number of the node's endpoints as weight.
	Direct bool
	// Routed: Backends see the clients' addresses under policy Cluster, too, and their answers are
	// routed through this gateway. The frontends' rules implement it; passive health checks read
	// it.
	Routed bool
	// byFold has the Backends of a direct Service in the order of their addresses' Fold: see
	// FindNode.
	byFold []BackendRef
	// Limits bound the connections to this port.
	Limits Limits
	// Topology selects, by family (0 is IPv4), the topology hints that sets of policy Cluster use.
	Topology [2]Topology
	// LocalExternal and LocalInternal: externalTrafficPolicy or internalTrafficPolicy is Local.
	// They are for display only: the frontends have the resulting sets.
	LocalExternal, LocalInternal bool
}

// Pins reports whether clients are pinned to their backends. For a direct Service the hash chooses
// the node by the client's address, on all gateways.
func (svc *Service) Pins() bool { return svc.AffinitySeconds != 0 && !svc.Direct }

// FullName returns namespace/name, with the port's name if it has one: namespace/name:port.
func (svc *Service) FullName() string {
	name := svc.Namespace + "/" + svc.Name
	if svc.PortName != "" {
		name += ":" + svc.PortName
	}
	return name
}

// Scheduler is the method of choosing a backend for a new flow. The names are from IPVS
// (ipvsadm(8)), except for maglev.
type Scheduler uint8

const (
	Maglev             Scheduler = iota // consistent hash of the flow; the same on all gateways
	RoundRobin                          // rr: in turn
	WeightedRoundRobin                  // wrr: in turn, by weight
	LeastConn                           // lc: fewest connections
	WeightedLeastConn                   // wlc: fewest connections for its weight
	SourceHash                          // sh: consistent hash of the client's address
	DestinationHash                     // dh: consistent hash of the frontend's address
	ShortestDelay                       // sed: least (connections + 1) / weight
	NeverQueue                          // nq: an idle one, else as sed
	Random                              // random: by weight
	NumSchedulers
)

// Topology names the topology hints that select the backends for new flows of policy Cluster
// (k8s.io/kubernetes pkg/proxy/topology.go).
type Topology uint8

const (
	TopologyNone Topology = iota // all ready endpoints
	TopologyZone                 // endpoints hinted for this node's zone (KEP-2433)
	TopologyNode                 // endpoints hinted for this node (KEP-3015)
)

// Empty is the action for a new flow that no backend can take.
type Empty uint8

const (
	// EmptyReject: no usable endpoint anywhere; ICMP port unreachable.
	EmptyReject Empty = iota
	// EmptyDrop: usable endpoints exist, but the policy excludes them; drop without an error.
	EmptyDrop
)

// EndpointSet is the set of backends that may take a frontend's new flows.
//
// The meaning of Table depends on the scheduler:
//
//	maglev, sh, dh, random   slot to position in Backends; shares are by weight
//	rr, wrr                  positions in Backends, in the order of turns
//	lc, wlc, sed, nq         none: all Backends are compared
//
// Without a Table, schedulers that use slots or turns have one slot for each backend. A set is
// empty if it has no Backends.
type EndpointSet struct {
	Backends []BackendRef // in order of address and port; weights are not 0
	Weights  []uint16     // by position in Backends; nil if all are 1
	Table    []uint16
	// Named is set while Table is from an earlier version of the set: Table then has positions in
	// Named, whose backends are of this version, some more than once. Nil: Table has positions in
	// Backends.
	Named []BackendRef
	Empty Empty
}

// Pick returns the backend of a hash's slot, or 0 if the set is empty.
func (s *EndpointSet) Pick(hash uint64) BackendRef {
	if len(s.Backends) == 0 {
		return 0
	}
	return s.at(slotOf(hash, s.Slots()))
}

// FrontendKind is the field of the Service that a frontend comes from.
type FrontendKind uint8

const (
	LoadBalancer FrontendKind = iota // status.loadBalancer.ingress
	ExternalIP                       // spec.externalIPs
	NodePort                         // spec.ports[].nodePort, on the node's addresses
	ClusterIP                        // spec.clusterIPs, from outside
)

// String returns the Kubernetes name.
func (k FrontendKind) String() string {
	return [...]string{"LoadBalancer", "ExternalIP", "NodePort", "ClusterIP"}[k]
}

// FrontendKey is the lookup key of a frontend. A node port's key has the zero address of its family
// (AnyIPv4 or AnyIPv6).
type FrontendKey struct {
	Addr  header.Addr
	Port  uint16
	Proto uint8
}

// The addresses of node-port keys.
var (
	AnyIPv4 = header.AddrFrom4([4]byte{})
	AnyIPv6 = header.Addr{}
)

// Frontend is one address, protocol and port that clients send to.
type Frontend struct {
	Key     FrontendKey
	Kind    FrontendKind
	Service *Service
	// Outside is for clients outside of the cluster, Pod for clients in Snapshot.Pods.
	Outside, Pod Rule
	// Allowed has the clients that may use the frontend (loadBalancerSourceRanges); nil allows all.
	Allowed *Prefixes
	// Turn counts the new flows that took turns. It is not nil if the scheduler is RoundRobin or
	// WeightedRoundRobin. Each frontend has its own, like each virtual server of IPVS: with a
	// shared counter, clients that alternate between two frontends would reach only some of the
	// backends by each. It is the only field of a Snapshot that workers write; all versions of a
	// frontend share it.
	Turn *Turn
}

// Turn is a counter on a separate cache line, because all workers write it.
type Turn struct {
	atomic.Uint32
	_ [60]byte
}

// Rule has the treatment of new flows from one kind of client.
type Rule struct {
	Set *EndpointSet
	// KeepClient: the backend sees the client's address; otherwise it sees a gateway's address.
	KeepClient bool
}

// AddrFlags has the roles of an address of this gateway.
type AddrFlags uint8

const (
	AddrVIP   AddrFlags = 1 << iota // a LoadBalancer or external IP: answers echo requests
	AddrNode                        // an address of this node that accepts node ports
	AddrSNAT                        // a source address of the gateway towards backends
	AddrLocal                       // an address of this node, with or without the roles above
)

// Snapshot is one immutable generation of the table. All methods are safe for
// any number of readers and do not allocate.
type Snapshot struct {
	Generation uint64
	// Moves counts the snapshots in which a UDP frontend that may have flows went to another
	// service port, or got or lost the PROXY protocol. Flows bound before such a snapshot compare
	// their owner with the frontend's again.
	Moves uint32
	// SelectKey keys the selection hash. All gateways of a cluster share it, so that they choose
	// the same backends.
	SelectKey [2]uint64
	// UnservedPort is the policy for packets of any protocol to a Routed address that belong to no
	// frontend and no flow.
	UnservedPort UnservedPolicy
	// ResetUnknown: segments of unknown TCP connections get an RST.
	ResetUnknown bool
	// Pods has the addresses of pods (cluster CIDRs); nil if they are not known.
	Pods *Prefixes
	// RetryOther: a client whose backend has answered neither its SYN nor the first repetition gets
	// another backend with the second repetition.
	RetryOther bool
	// Source addresses towards backends, by family.
	SNAT4, SNAT6 []header.Addr
	// SNATByRoute4 and SNATByRoute6: a flow's source address is the Source of its route if that is
	// an AddrSNAT, and otherwise one of the above.
	SNATByRoute4, SNATByRoute6 bool
	// Group4 and Group6 are the source addresses of flows through frontends with an address of
	// their own, in place of the above: other gateways of the group have copies of these flows.
	// Zero: there is none. GroupSources are the source addresses of all gateways of the group.
	Group4, Group6 header.Addr
	GroupSources   []header.Addr
	// TunnelPort is the UDP port of the tunnel to nodes with direct return; 0: there is none. Nodes
	// admit packets to it by their source, so no packet of a Service may leave with an address of
	// this gateway to that port: the compiler refuses endpoints that have it, and IntoTunnel finds
	// packets whose replies would go to it.
	TunnelPort uint16
	// SNATPorts is the range for source ports of addresses that the node also has: see SourcePorts.
	SNATPorts PortRange

	frontends index[FrontendKey, *Frontend]
	portUses  pages[int32] // by port, of frontends with an address: see FromFrontend
	released  released     // see Builder.SetFrontend
	addrs     index[header.Addr, AddrFlags]
	backends  pages[Backend]
	serving   pages[uint64] // by backend index, a bit each: see Serves
	services  pages[*Service]
}

// PortRange is Count ports from First on.
type PortRange struct{ First, Count uint16 }

// Contains reports whether a port is in the range.
func (r PortRange) Contains(port uint16) bool { return port-r.First < r.Count }

// OwnPorts is the range for source ports of addresses that the node does not have: all except for
// the system ports (RFC 6335 section 6).
var OwnPorts = PortRange{First: 1024, Count: 65536 - 1024}

// SourcePorts returns the range for source ports of an SNAT address: SNATPorts if the node has the
// address, because it uses ports for its own connections and listeners; else OwnPorts.
//
// The address may also be a VIP: a worker looks up the flow of a packet before its frontend, so
// replies are not taken for requests.
func (s *Snapshot) SourcePorts(a header.Addr) PortRange {
	if s.Owned(a)&(AddrSNAT|AddrNode|AddrLocal) == AddrSNAT {
		return OwnPorts
	}
	return s.SNATPorts
}

// UnservedPolicy is the action for a packet to a Routed address that belongs to no frontend and no
// flow.
type UnservedPolicy uint8

const (
	UnservedPass   UnservedPolicy = iota // the kernel decides
	UnservedReject                       // dropped; ICMP port or protocol unreachable where an error may be sent
	UnservedDrop                         // dropped silently
)

// Frontend returns the frontend of a packet's destination: the one with its exact address, or else
// a node port if the address is an AddrNode. It returns nil if there is none.
func (s *Snapshot) Frontend(t *header.Tuple) *Frontend {
	if f, ok := s.frontends.get(FrontendKey{t.Dst, t.DstPort, t.Proto}); ok {
		return f
	}
	if flags, _ := s.addrs.get(t.Dst); flags&AddrNode == 0 {
		return nil
	}
	key := FrontendKey{AnyIPv4, t.DstPort, t.Proto}
	if t.V6 {
		key.Addr = AnyIPv6
	}
	f, _ := s.frontends.get(key)
	return f
}

// FrontendByKey returns the frontend with a key.
func (s *Snapshot) FrontendByKey(k FrontendKey) (*Frontend, bool) { return s.frontends.get(k) }

// AtNode reports whether a packet's destination is a frontend, other than a node port, at an
// address of the node. The kernel program looks for a socket of the node before it redirects a
// packet to such a frontend, but redirects fragments without that lookup: fragments that belong to
// no flow may be for a socket.
func (s *Snapshot) AtNode(t *header.Tuple) bool {
	if s.Owned(t.Dst)&(AddrNode|AddrLocal) == 0 {
		return false
	}
	_, ok := s.frontends.get(FrontendKey{t.Dst, t.DstPort, t.Proto})
	return ok
}

// FromFrontend reports whether the source address, port and protocol of a packet from outside to a
// frontend are also a frontend. A frontend opens no flows: only this gateway's answers for it have
// that source. A flow from a frontend would make two services answer each other, endlessly if both
// answer every packet (CVE-2024-2169). Node ports do not count: any client may use the number as
// its port. An external IP counts for its own namespace only: otherwise its author could block any
// client from the Services of others (CVE-2020-8554). Few clients use a port that a frontend has,
// so most packets cost one load.
func (s *Snapshot) FromFrontend(t *header.Tuple, to *Frontend) bool {
	if uses := s.portUses.at(uint32(t.SrcPort)); uses == nil || *uses == 0 {
		return false
	}
	f, ok := s.frontends.get(FrontendKey{t.Src, t.SrcPort, t.Proto})
	return ok && (f.Kind != ExternalIP || f.Service.Namespace == to.Service.Namespace)
}

// IntoTunnel reports whether replies to a packet from outside, whose source may be forged, would
// leave with an address of this gateway to the tunnel's port.
func (s *Snapshot) IntoTunnel(t *header.Tuple) bool {
	return t.SrcPort == s.TunnelPort && t.SrcPort != 0 && t.Proto == header.ProtoUDP &&
		s.Owned(t.Dst)&(AddrNode|AddrLocal|AddrSNAT) != 0
}

// Owned returns the roles of an address; zero if it is not an address of this gateway.
func (s *Snapshot) Owned(a header.Addr) AddrFlags {
	flags, _ := s.addrs.get(a)
	return flags
}

// Routed reports whether an address is a VIP or an SNAT address that the node does not have. The
// network routes packets for it to this gateway. The kernel would forward them by its own route to
// the address, which mostly leads back to the router that sent them.
func (s *Snapshot) Routed(a header.Addr) bool {
	flags := s.Owned(a)
	return flags&(AddrVIP|AddrSNAT) != 0 && flags&(AddrNode|AddrLocal) == 0
}

// Backend returns the backend of a ref; nil if it is gone or its index has another backend.
func (s *Snapshot) Backend(r BackendRef) *Backend {
	b := s.backends.at(r.Index())
	if b == nil || b.Ref != r || r == 0 {
		return nil
	}
	return b
}

// Serves returns true if the backend with this ref serves. The ref must be from a flow that counts
// in its backend's load: the index is then not given to another backend (see BackendRef), and one
// bit for each index is enough. False is inconclusive: call Backend. It is false for ref 0, which a
// flow of an earlier process has if its backend is gone.
func (s *Snapshot) Serves(r BackendRef) bool {
	root, i := s.serving.root, r.Index() // as in pages.at, for which the compiler makes six instructions more
	if n := uint(i / (64 * pageSize)); n < uint(len(root)) {
		return root[n].v[i/64%pageSize]>>(i%64)&1 != 0
	}
	return false
}

// Service returns the service port with a number; nil if it is gone.
func (s *Snapshot) Service(id ServiceID) *Service {
	p := s.services.at(uint32(id))
	if p == nil {
		return nil
	}
	return *p
}

// Frontends calls f for every frontend until it returns false.
func (s *Snapshot) Frontends(f func(*Frontend) bool) {
	s.frontends.each(func(_ FrontendKey, v *Frontend) bool { return f(v) })
}

// Addrs calls f for every address of this gateway until it returns false.
func (s *Snapshot) Addrs(f func(header.Addr, AddrFlags) bool) { s.addrs.each(f) }

// Backends calls f for every backend until it returns false.
func (s *Snapshot) Backends(f func(*Backend) bool) {
	s.backends.each(func(b *Backend) bool { return b.Ref == 0 || f(b) })
}

// BackendIndexes returns one more than the highest backend index ever used, for
// stats.Counters.Ensure.
func (s *Snapshot) BackendIndexes() int { return s.backends.len() }

// Handle has the current Snapshot. The control loop stores it. Workers load it once per batch and
// publish its generation in their stats.Block; a snapshot is out of use when every worker has
// published a later one.
type Handle struct{ p atomic.Pointer[Snapshot] }

// Load returns the current snapshot. It pairs with Store: all writes of the control loop before
// Store are visible.
func (h *Handle) Load() *Snapshot { return h.p.Load() }

// Store publishes a snapshot.
func (h *Handle) Store(s *Snapshot) { h.p.Store(s) }
