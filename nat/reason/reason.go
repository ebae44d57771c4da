// Package reason names every reason to drop a packet. The package depends on nothing, so that the
// parser, the worker, the counters and what shows them use one list.
package reason

import "slices"

// Drop is the reason for dropping a packet. Every dropped packet has exactly one. The zero value
// means "not dropped".
type Drop uint8

// The order follows a packet's processing: parse, check, find a flow, admit a new one, send. The
// names are an interface (`sluice stats`, the label `reason` in metrics), so a released name does
// not change.
const (
	None Drop = iota

	// Layer 2.
	FrameTruncated // shorter than its own headers claim
	FrameOversize  // longer than a frame of the UMEM can hold
	FrameBuffers   // in more buffers than the kernel sends as one packet, or with an empty buffer
	EtherType      // steered, yet neither IPv4 nor IPv6

	// IPv4, RFC 791 and RFC 1812 section 5.2.2.
	IPv4Header      // invalid version, header length, total length or option
	IPv4Checksum    // header checksum does not verify
	IPv4SourceRoute // LSRR or SSRR option (RFC 7126 section 4.3, 4.4)

	// IPv6, RFC 8200.
	IPv6Header          // invalid version or payload length
	IPv6ExtensionHeader // truncated, too many, in an order RFC 8200 section 4.1 forbids, or with bad options
	IPv6RoutingHeader   // type 0 (RFC 5095) or any with segments left

	// Addresses.
	MartianSource      // loopback, multicast, broadcast, zero or link-local source (of an ICMP error: not link-local)
	MartianDestination // the same kinds of address as a destination
	LandAttack         // source equals destination
	SpoofedSource      // a packet from outside whose source is an address of this gateway, or a frontend
	ReversePath        // a reply from another interface or VLAN than packets to its backend leave by

	// Fragments.
	FragmentTiny    // first fragment without its whole header chain (RFC 7112, RFC 1858)
	FragmentOverlap // fragments that disagree about their datagram's bytes or ports (RFC 5722)
	FragmentLength  // not a multiple of 8, or beyond 65,535 bytes
	FragmentTimeout // the first fragment did not arrive in time
	FragmentLimit   // no room to hold it until the first one arrives

	// Transport.
	TCPHeader    // truncated, or an invalid data offset
	TCPFlags     // a combination that no TCP sends
	UDPLength    // invalid length field
	SCTPHeader   // common header or first chunk, or an INIT not alone or with a tag (RFC 9260 section 8.5.1)
	SCTPFragment // a fragment: the CRC covers the whole packet, whose length is not known
	PortZero     // source or destination port 0
	ICMPHeader   // truncated, or with an invalid embedded packet
	ICMPChecksum // an ICMP error whose checksum does not verify (RFC 5508 REQ-3)
	ICMPNoFlow   // an ICMP error about an unknown flow
	ICMPMTUFloor // announces a path MTU below the floor
	ICMPMTUQuote // announces a path MTU, but the quoted packet was not larger than that
	ICMPMTULimit // announces a path MTU, but its client's network has announced too many
	ICMPType     // a message type that is not translated
	Protocol     // a protocol that is not translated

	// Finding and admitting a flow.
	TTLExceeded        // TTL or hop limit would reach zero
	NoFlow             // without a flow: TCP or SCTP that opens none, or any to a source address
	LateAnswer         // from a backend whose flow was abandoned
	ProxyHandshake     // bytes of a client that would come before its PROXY header
	ProxyDatagram      // a PROXY header cannot go in front of it: a fragment, or longer than a buffer
	BackendGone        // from an endpoint or for a node that is gone, or answers a connection that may not begin there
	SourceRangeDenied  // the source is not in the Service's loadBalancerSourceRanges
	NoEndpoints        // the service has no usable endpoint; rejected by ICMP
	NoLocalEndpoints   // external traffic policy Local and none here; dropped without an error
	NewFlowDisplaced   // waited for its flow to be opened, and was evicted for a newer packet
	FlowTableFull      // the flow table is full, and no flow can be evicted
	HalfOpenLimit      // too many half-open flows
	SNATPortsExhausted // no free source port towards this backend
	FrontendRejected   // unserved port of a VIP, by configuration

	// Limits of a Service.
	LimitSourceConnections  // the source has as many connections as a source may have
	LimitSourceRate         // the source opened as many connections in a second as a source may open
	LimitServiceConnections // the Service has as many connections as it may have
	LimitServiceRate        // as many connections to the Service were opened in a second as it allows

	// Sending.
	NoRoute            // the kernel has no route to the next hop
	NeighbourPending   // the next hop did not answer in time
	NeighbourQueueFull // too many packets wait for next hops
	NeighbourDisplaced // evicted for another packet that waits for a next hop
	PacketTooBig       // larger than the next link's MTU, and must not be fragmented
	TxRingFull         // the link's transmit ring had no room
	LinkDown           // the link is down or gone
	NoFrame            // no free frame for a generated packet
	HostLinkDown       // for the kernel, but there is no host link

	// HostLinkOther: a packet from the host link that belongs to no flow and cannot be forwarded
	// (neighbour discovery, multicast).
	HostLinkOther

	// Configuration changes.
	Shutdown // held or queued while the worker or the link went away

	Count // of the reasons above, None included
)

var names = [Count]string{
	None:                    "none",
	FrameTruncated:          "frame_truncated",
	FrameOversize:           "frame_oversize",
	FrameBuffers:            "frame_buffers",
	EtherType:               "ether_type",
	IPv4Header:              "ipv4_header",
	IPv4Checksum:            "ipv4_checksum",
	IPv4SourceRoute:         "ipv4_source_route",
	IPv6Header:              "ipv6_header",
	IPv6ExtensionHeader:     "ipv6_extension_header",
	IPv6RoutingHeader:       "ipv6_routing_header",
	MartianSource:           "martian_source",
	MartianDestination:      "martian_destination",
	LandAttack:              "land_attack",
	SpoofedSource:           "spoofed_source",
	ReversePath:             "reverse_path",
	FragmentTiny:            "fragment_tiny",
	FragmentOverlap:         "fragment_overlap",
	FragmentLength:          "fragment_length",
	FragmentTimeout:         "fragment_timeout",
	FragmentLimit:           "fragment_limit",
	TCPHeader:               "tcp_header",
	TCPFlags:                "tcp_flags",
	UDPLength:               "udp_length",
	SCTPHeader:              "sctp_header",
	SCTPFragment:            "sctp_fragment",
	PortZero:                "port_zero",
	ICMPHeader:              "icmp_header",
	ICMPChecksum:            "icmp_checksum",
	ICMPNoFlow:              "icmp_no_flow",
	ICMPMTUFloor:            "icmp_mtu_floor",
	ICMPMTUQuote:            "icmp_mtu_quote",
	ICMPMTULimit:            "icmp_mtu_limit",
	ICMPType:                "icmp_type",
	Protocol:                "protocol",
	TTLExceeded:             "ttl_exceeded",
	NoFlow:                  "no_flow",
	LateAnswer:              "late_answer",
	ProxyHandshake:          "proxy_handshake",
	ProxyDatagram:           "proxy_datagram",
	BackendGone:             "backend_gone",
	SourceRangeDenied:       "source_range",
	NoEndpoints:             "no_endpoints",
	NoLocalEndpoints:        "no_local_endpoints",
	NewFlowDisplaced:        "new_flow_displaced",
	FlowTableFull:           "flow_table_full",
	HalfOpenLimit:           "half_open_limit",
	SNATPortsExhausted:      "snat_ports_exhausted",
	FrontendRejected:        "frontend_rejected",
	LimitSourceConnections:  "limit_source_connections",
	LimitSourceRate:         "limit_source_rate",
	LimitServiceConnections: "limit_service_connections",
	LimitServiceRate:        "limit_service_rate",
	NoRoute:                 "no_route",
	NeighbourPending:        "neighbour_pending",
	NeighbourQueueFull:      "neighbour_queue_full",
	NeighbourDisplaced:      "neighbour_displaced",
	PacketTooBig:            "packet_too_big",
	TxRingFull:              "tx_ring_full",
	LinkDown:                "link_down",
	NoFrame:                 "no_frame",
	HostLinkDown:            "host_link_down",
	HostLinkOther:           "host_link_other",
	Shutdown:                "shutdown",
}

// Names returns the names of all reasons, in their order.
func Names() []string { return slices.Clone(names[None+1:]) }

// Parse returns the reason with a name; ok is false if there is none.
func Parse(name string) (r Drop, ok bool) {
	i := slices.Index(names[None+1:], name)
	return None + 1 + Drop(max(i, 0)), i >= 0
}

// String returns the reason's name in metrics and tables.
func (r Drop) String() string {
	if r >= Count {
		return "unknown"
	}
	return names[r]
}
