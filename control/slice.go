package control

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// slice is what is kept of a discovery.k8s.io/v1 EndpointSlice. It is immutable
// and its endpoints are pointer-free: there are many of them.
type slice struct {
	id        ObjectID
	service   string // name; "" if the slice belongs to none that is served
	v6        bool
	hints     bool // hintSets has one
	ports     []slicePort
	nodes     []string   // what endpoint.node indexes
	zones     []string   // what endpoint.zone indexes
	hintSets  [][]string // what endpoint.forNodes and forZones index: names in order
	endpoints []endpoint
	weights   []int32 // of endpoints, by the slice's annotation; -1 where it is silent, nil without one
	faults    []fault
	// trigger is when what made this version happened (annotation
	// endpoints.kubernetes.io/last-change-trigger-time), in nanoseconds since 1970; 0 if
	// it does not say. It is no part of equality: it only measures.
	trigger int64
}

type slicePort struct {
	name  string
	proto uint8
	port  uint16
}

// endpoint names what is in its slice's lists by one more than the index; 0 is nothing.
type endpoint struct {
	addr               header.Addr
	node, zone         uint16
	forNodes, forZones uint16
	flags              services.BackendFlags
}

// maxSliceEndpoints is the API's own bound (discovery/v1 EndpointSlice.endpoints).
const maxSliceEndpoints = 1000

func (s *slice) equal(o *slice) bool {
	return s.id == o.id && s.service == o.service && s.v6 == o.v6 && s.hints == o.hints &&
		slices.Equal(s.ports, o.ports) && slices.Equal(s.nodes, o.nodes) && slices.Equal(s.zones, o.zones) &&
		slices.EqualFunc(s.hintSets, o.hintSets, slices.Equal) && slices.Equal(s.weights, o.weights) &&
		slices.Equal(s.endpoints, o.endpoints) && slices.Equal(s.faults, o.faults)
}

// trimSlice keeps what is needed of an EndpointSlice. An endpoint whose address
// nothing can be sent to is a fault; the others beside it are kept.
func trimSlice(in *discoveryv1.EndpointSlice) (s *slice, malformed []fault) {
	s = &slice{id: idOf(KindEndpointSlice, in.Namespace, in.Name)}
	malformed = checkName(s.id)
	s.trigger = triggerTime(in.Annotations[corev1.EndpointsLastChangeTriggerTime])
	if _, headless := in.Labels[corev1.IsHeadlessService]; headless {
		return s, malformed
	}
	switch in.AddressType {
	case discoveryv1.AddressTypeIPv4:
	case discoveryv1.AddressTypeIPv6:
		s.v6 = true
	case discoveryv1.AddressTypeFQDN:
		return s, malformed
	default:
		return s, append(malformed, refuse("addressType", "%q is none of IPv4, IPv6 and FQDN", in.AddressType))
	}
	if len(in.Endpoints) > maxSliceEndpoints {
		return s, append(malformed, refuse("endpoints", "%d are more than the API's %d", len(in.Endpoints), maxSliceEndpoints))
	}
	s.service = in.Labels[discoveryv1.LabelServiceName]
	malformed = append(malformed, s.readPorts(in.Ports)...)
	s.readEndpoints(in)
	return s, malformed
}

// readPorts leaves out ports without a number, which match no Service port. A
// missing name is the empty name, as the API server would write it.
func (s *slice) readPorts(ports []discoveryv1.EndpointPort) (malformed []fault) {
	for i, p := range ports {
		var kind corev1.Protocol
		if p.Protocol != nil {
			kind = *p.Protocol
		}
		proto, ok := protocol(kind)
		if !ok {
			malformed = append(malformed, refuse(fmt.Sprintf("ports[%d].protocol", i), "%q is none of TCP, UDP and SCTP", kind))
			continue
		}
		if p.Port != nil && (*p.Port < 0 || *p.Port > math.MaxUint16) {
			malformed = append(malformed, refuse(fmt.Sprintf("ports[%d].port", i), "%d is not between 0 and 65535", *p.Port))
			continue
		}
		if p.Port == nil || *p.Port == 0 {
			continue
		}
		sp := slicePort{proto: proto, port: uint16(*p.Port)}
		if p.Name != nil {
			sp.name = *p.Name
		}
		s.ports = append(s.ports, sp)
	}
	return malformed
}

func (s *slice) readEndpoints(in *discoveryv1.EndpointSlice) {
	rules, faults := readWeights(in.Annotations)
	s.faults = append(s.faults, faults...)
	nodes, zones, hints := map[string]uint16{}, map[string]uint16{}, map[string]uint16{}
	s.endpoints = make([]endpoint, 0, len(in.Endpoints))
	for i := range in.Endpoints {
		from := &in.Endpoints[i]
		if len(from.Addresses) == 0 {
			s.faults = append(s.faults, refuse(fmt.Sprintf("endpoints[%d].addresses", i), "is empty"))
			continue
		}
		addr, err := servable(from.Addresses[0], s.v6)
		if err != nil {
			s.faults = append(s.faults, refuse(fmt.Sprintf("endpoints[%d].addresses[0]", i), "%q %v", from.Addresses[0], err))
			continue
		}
		e := endpoint{addr: addr, flags: conditions(&from.Conditions)}
		if from.NodeName != nil {
			e.node = intern(&s.nodes, nodes, *from.NodeName, *from.NodeName)
		}
		if from.Zone != nil {
			e.zone = intern(&s.zones, zones, *from.Zone, *from.Zone)
		}
		if from.Hints != nil {
			e.forNodes = s.hintSet(hints, forNodes(from.Hints))
			e.forZones = s.hintSet(hints, forZones(from.Hints))
		}
		if rules != nil {
			s.weights = append(s.weights, rules.weight(addr, s.node(&e), s.zone(&e)))
		}
		s.endpoints = append(s.endpoints, e)
	}
	s.hints = len(s.hintSets) > 0
}

// intern returns what an endpoint says for v, which is put into the list once by its key.
func intern[T any](list *[]T, known map[string]uint16, key string, v T) uint16 {
	n, ok := known[key]
	if !ok {
		*list = append(*list, v)
		n = uint16(len(*list))
		known[key] = n
	}
	return n
}

func (s *slice) hintSet(known map[string]uint16, names []string) uint16 {
	if len(names) == 0 {
		return 0
	}
	slices.Sort(names)
	return intern(&s.hintSets, known, strings.Join(names, "\x00"), names)
}

func forNodes(h *discoveryv1.EndpointHints) (names []string) {
	for _, n := range h.ForNodes {
		names = append(names, n.Name)
	}
	return names
}

func forZones(h *discoveryv1.EndpointHints) (names []string) {
	for _, z := range h.ForZones {
		names = append(names, z.Name)
	}
	return names
}

// node and zone are the names that an endpoint has; "" where it has none.
func (s *slice) node(e *endpoint) string { return named(s.nodes, e.node) }
func (s *slice) zone(e *endpoint) string { return named(s.zones, e.zone) }

func named(list []string, n uint16) string {
	if n == 0 {
		return ""
	}
	return list[n-1]
}

// conditions applies the API's defaults: ready and serving unless it says not,
// not terminating unless it says so. A ready endpoint counts as serving: the
// controller says ready without serving for Services that publish unready
// addresses, and whoever takes new flows must keep its old ones.
func conditions(c *discoveryv1.EndpointConditions) (flags services.BackendFlags) {
	if c.Ready == nil || *c.Ready {
		flags |= services.BackendReady | services.BackendServing
	}
	if c.Serving == nil || *c.Serving {
		flags |= services.BackendServing
	}
	if c.Terminating != nil && *c.Terminating {
		flags |= services.BackendTerminating
	}
	return flags
}

func compareAddrs(a, b header.Addr) int { return bytes.Compare(a[:], b[:]) }
