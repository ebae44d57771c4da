package objects

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// Slice has the fields of a discovery.k8s.io/v1 EndpointSlice that are compiled. It is immutable.
// Its endpoints have no pointers, because there are many endpoints.
type Slice struct {
	ID        ObjectID
	Service   string // name; "" if the slice belongs to none that is served
	V6        bool
	Hints     bool // HintSets has one
	Ports     []SlicePort
	nodes     []string   // what endpoint.node indexes
	zones     []string   // what endpoint.zone indexes
	HintSets  [][]string // what endpoint.ForNodes and ForZones index: names in order
	Endpoints []Endpoint // by address: each port of the slice sorts them again, which is then quick
	Weights   []int32    // of endpoints, by the slice's annotation: -1 where no entry matches; nil without one
	Problems  []FieldProblem
	// Trigger is the time of the change that led to this version (annotation
	// endpoints.kubernetes.io/last-change-trigger-time), in nanoseconds since 1970; 0 without the
	// annotation. It is for measurements, and Equal ignores it.
	Trigger int64
}

// SlicePort is a port of all endpoints of a slice.
type SlicePort struct {
	Name  string
	Proto uint8
	Port  uint16
}

// Endpoint refers to entries of its slice's lists by their index plus one; 0 is none.
type Endpoint struct {
	Addr               header.Addr
	node, zone         uint16
	ForNodes, ForZones uint16
	Flags              services.BackendFlags
}

// maxSliceEndpoints is the API's own bound (discovery/v1 EndpointSlice.endpoints).
const maxSliceEndpoints = 1000

func (s *Slice) equal(o *Slice) bool {
	return s.ID == o.ID && s.Service == o.Service && s.V6 == o.V6 && s.Hints == o.Hints &&
		slices.Equal(s.Ports, o.Ports) && slices.Equal(s.nodes, o.nodes) && slices.Equal(s.zones, o.zones) &&
		slices.EqualFunc(s.HintSets, o.HintSets, slices.Equal) && slices.Equal(s.Weights, o.Weights) &&
		slices.Equal(s.Endpoints, o.Endpoints) && slices.Equal(s.Problems, o.Problems)
}

// TrimSlice copies the fields that are compiled. An endpoint with an address that no packet can be
// sent to is a problem and is left out; the others are kept.
func TrimSlice(in *discoveryv1.EndpointSlice) (s *Slice, malformed []FieldProblem) {
	s = &Slice{ID: MakeObjectID(KindEndpointSlice, in.Namespace, in.Name)}
	malformed = checkName(s.ID)
	s.Trigger = triggerTime(in.Annotations[corev1.EndpointsLastChangeTriggerTime])
	if _, headless := in.Labels[corev1.IsHeadlessService]; headless {
		return s, malformed
	}
	switch in.AddressType {
	case discoveryv1.AddressTypeIPv4:
	case discoveryv1.AddressTypeIPv6:
		s.V6 = true
	case discoveryv1.AddressTypeFQDN:
		return s, malformed
	default:
		return s, append(malformed, refuse("addressType", "%q is none of IPv4, IPv6 and FQDN", in.AddressType))
	}
	if len(in.Endpoints) > maxSliceEndpoints {
		return s, append(malformed, refuse("endpoints", "%d are more than the API's %d", len(in.Endpoints),
			maxSliceEndpoints))
	}
	s.Service = in.Labels[discoveryv1.LabelServiceName]
	malformed = append(malformed, s.readPorts(in.Ports)...)
	s.readEndpoints(in)
	return s, malformed
}

// readPorts leaves out ports without a number, which match no Service port. A missing name is the
// empty name, as in the API server.
func (s *Slice) readPorts(ports []discoveryv1.EndpointPort) (malformed []FieldProblem) {
	known := map[SlicePort]bool{}
	for i, p := range ports {
		var kind corev1.Protocol
		if p.Protocol != nil {
			kind = *p.Protocol
		}
		proto, ok := protocol(kind)
		if !ok {
			malformed = append(malformed, refuse(fmt.Sprintf("ports[%d].protocol", i),
				"%q is none of TCP, UDP and SCTP", kind))
			continue
		}
		if p.Port != nil && (*p.Port < 0 || *p.Port > math.MaxUint16) {
			malformed = append(malformed, refuse(fmt.Sprintf("ports[%d].port", i), "%d is not between 0 and 65535",
				*p.Port))
			continue
		}
		if p.Port == nil || *p.Port == 0 {
			continue
		}
		sp := SlicePort{Proto: proto, Port: uint16(*p.Port)}
		if p.Name != nil {
			sp.Name = *p.Name
		}
		if name := (SlicePort{Name: sp.Name, Proto: proto}); known[name] {
			malformed = append(malformed, refuse(fmt.Sprintf("ports[%d].name", i), "%q is the name of another port",
				sp.Name))
			continue
		} else {
			known[name] = true
		}
		s.Ports = append(s.Ports, sp)
	}
	return malformed
}

func (s *Slice) readEndpoints(in *discoveryv1.EndpointSlice) {
	rules, problems := readWeights(in.Annotations)
	s.Problems = append(s.Problems, problems...)
	s.Problems = append(s.Problems, unknownAnnotations(in.Annotations, KindEndpointSlice, sliceAnnotations)...)
	nodes, zones, hints := map[string]uint16{}, map[string]uint16{}, map[string]uint16{}
	s.Endpoints = make([]Endpoint, 0, len(in.Endpoints))
	for i := range in.Endpoints {
		from := &in.Endpoints[i]
		if len(from.Addresses) == 0 {
			s.Problems = append(s.Problems, refuse(fmt.Sprintf("endpoints[%d].addresses", i), "is empty"))
			continue
		}
		addr, err := servable(from.Addresses[0], s.V6)
		if err != nil {
			s.Problems = append(s.Problems, refuse(fmt.Sprintf("endpoints[%d].addresses[0]", i), "%q %v",
				from.Addresses[0], err))
			continue
		}
		e := Endpoint{Addr: addr, Flags: conditions(&from.Conditions)}
		if from.NodeName != nil {
			e.node = intern(&s.nodes, nodes, *from.NodeName, *from.NodeName)
		}
		if from.Zone != nil {
			e.zone = intern(&s.zones, zones, *from.Zone, *from.Zone)
		}
		if from.Hints != nil {
			e.ForNodes = s.hintSet(hints, forNodes(from.Hints))
			e.ForZones = s.hintSet(hints, forZones(from.Hints))
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	slices.SortStableFunc(s.Endpoints, func(a, b Endpoint) int { return CompareAddrs(a.Addr, b.Addr) })
	if rules != nil {
		table := rules.Table()
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			s.Weights = append(s.Weights, table.Weight(e.Addr, s.Node(e), s.Zone(e)))
		}
	}
	s.Hints = len(s.HintSets) > 0
}

// intern returns the number by which an endpoint refers to v, and appends v to the list if its key
// is not known.
func intern[T any](list *[]T, known map[string]uint16, key string, v T) uint16 {
	n, ok := known[key]
	if !ok {
		*list = append(*list, v)
		n = uint16(len(*list))
		known[key] = n
	}
	return n
}

func (s *Slice) hintSet(known map[string]uint16, names []string) uint16 {
	if len(names) == 0 {
		return 0
	}
	slices.Sort(names)
	return intern(&s.HintSets, known, strings.Join(names, "\x00"), names)
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

// Node and Zone return the names that an endpoint has; "" where it has none.
func (s *Slice) Node(e *Endpoint) string { return named(s.nodes, e.node) }
func (s *Slice) Zone(e *Endpoint) string { return named(s.zones, e.zone) }

func named(list []string, n uint16) string {
	if n == 0 {
		return ""
	}
	return list[n-1]
}

// conditions applies the API's defaults: ready, serving, and not terminating. A ready endpoint
// counts as serving, because an endpoint that takes new flows must keep its old ones: for Services
// that publish unready addresses the controller sets ready without serving.
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

// CompareAddrs compares addresses by the order of all sorted lists of addresses.
func CompareAddrs(a, b header.Addr) int { return bytes.Compare(a[:], b[:]) }

// triggerTime parses the annotation that the EndpointSlice controller writes: RFC 3339 with
// nanoseconds. It returns 0 for a value that is no time.
func triggerTime(annotation string) int64 {
	if annotation == "" {
		return 0
	}
	at, err := time.Parse(time.RFC3339Nano, annotation)
	if err != nil {
		return 0
	}
	return at.UnixNano()
}
