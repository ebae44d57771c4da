package objects

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sluice.dev/sluice/nat/header"
)

// annotationProxyProtocol is the annotation of a Service whose endpoints expect the PROXY protocol,
// version 2: v2 on all TCP ports, v2+udp on all TCP and UDP ports, or none.
const annotationProxyProtocol = "sluice.dev/proxy-protocol"

const withUDP = "v2+udp"

// cloudAnnotation is an annotation by which a Service asks a cloud's load balancer for the PROXY
// protocol. It is read if the Service does not have annotationProxyProtocol.
type cloudAnnotation struct {
	key string
	// on and off are the documented values. Others are a problem.
	on, off []string
	// ports: the value may also be a list of ports.
	ports bool
}

var booleans = cloudAnnotation{on: []string{"true"}, off: []string{"false"}}

// cloudAnnotations are in order of key. docs/client-address.md lists the source of each.
var cloudAnnotations = []cloudAnnotation{
	{key: "load-balancer.hetzner.cloud/uses-proxyprotocol", on: booleans.on, off: booleans.off},
	{key: "loadbalancer.openstack.org/proxy-protocol", on: []string{"v2"}, off: booleans.off},
	{key: "service.beta.kubernetes.io/aws-load-balancer-proxy-protocol", on: []string{"*"}},
	{key: "service.beta.kubernetes.io/do-loadbalancer-enable-proxy-protocol", on: booleans.on, off: booleans.off},
	{key: "service.beta.kubernetes.io/linode-loadbalancer-default-proxy-protocol", on: []string{"v2"},
		off: []string{"none"}},
	{key: "service.beta.kubernetes.io/ovh-loadbalancer-proxy-protocol", on: []string{"v2"}},
	{key: "service.beta.kubernetes.io/scw-loadbalancer-proxy-protocol-v2", on: []string{"true", "*"},
		off: booleans.off, ports: true},
	{key: "service.beta.kubernetes.io/vultr-loadbalancer-proxy-protocol", on: booleans.on, off: booleans.off},
}

// ReadAnnotation reports whether the annotation with a key may be read, or reported as unknown.
func ReadAnnotation(key string) bool {
	return OwnAnnotation(key) ||
		slices.ContainsFunc(cloudAnnotations, func(c cloudAnnotation) bool { return c.key == key })
}

// ProxyProtocol says which ports of a Service have the PROXY protocol. It is comparable.
type ProxyProtocol struct {
	all   bool   // TCP ports
	udp   bool   // and all UDP ports
	ports string // of TCP, comma separated, with a comma at each end; "" if all or none
}

// Of reports whether the endpoints of a service port get PROXY headers.
func (p ProxyProtocol) Of(port *ServicePort) bool {
	switch port.Proto {
	case header.ProtoTCP:
		return p.all || strings.Contains(p.ports, ","+strconv.Itoa(int(port.Port))+",")
	case header.ProtoUDP:
		return p.udp
	}
	return false
}

// readProxyProtocol reads the annotations. It ignores invalid ones with a warning. An annotation of
// a cloud that is on is a warning as well: the Service may be older than the gateway's support.
func (s *Service) readProxyProtocol(annotations map[string]string) {
	if text, ok := annotations[annotationProxyProtocol]; ok {
		own := cloudAnnotation{key: annotationProxyProtocol, on: []string{"v2", withUDP}, off: []string{"none"}}
		s.ProxyProtocol.udp = strings.TrimSpace(text) == withUDP
		s.proxyProtocolBy(&own, text)
		return
	}
	for i := range cloudAnnotations {
		if text, ok := annotations[cloudAnnotations[i].key]; ok {
			s.proxyProtocolBy(&cloudAnnotations[i], text)
			if s.ProxyProtocol != (ProxyProtocol{}) {
				return
			}
		}
	}
}

// proxyProtocolBy sets the PROXY protocol by the value of an annotation.
func (s *Service) proxyProtocolBy(c *cloudAnnotation, value string) {
	text := strings.TrimSpace(value)
	switch {
	case slices.Contains(c.on, text):
		s.ProxyProtocol.all = true
	case slices.Contains(c.off, text):
		return
	case c.ports && portList(text) != "":
		s.ProxyProtocol.ports = portList(text)
	default:
		allowed := strings.Join(append(slices.Clone(c.on), c.off...), ", ")
		if c.ports {
			allowed += " and a list of ports"
		}
		s.Problems = append(s.Problems, warn("metadata.annotations["+c.key+"]",
			"%s is none of %s: only version 2 of the PROXY protocol can be sent; endpoints get no header", Clip(
				strconv.Quote(value)), allowed))
		return
	}
	if !slices.ContainsFunc(s.Ports, func(p ServicePort) bool { return s.ProxyProtocol.Of(&p) }) {
		s.Problems = append(s.Problems, warn("metadata.annotations["+c.key+"]",
			"the Service has no such TCP port; the PROXY protocol of other ports needs %s: %s",
			annotationProxyProtocol, withUDP))
	} else if c.key != annotationProxyProtocol {
		s.Problems = append(s.Problems, warn("metadata.annotations["+c.key+"]",
			"by this annotation endpoints get PROXY headers; confirm with %s: v2, or stop with none",
			annotationProxyProtocol))
	}
}

// portList returns a list of port numbers in the form of ProxyProtocol.ports; "" if the text is
// none.
func portList(text string) string {
	list := ","
	for part := range strings.SplitSeq(text, ",") {
		port, err := strconv.ParseUint(strings.TrimSpace(part), 10, 16)
		if err != nil || port == 0 || len(list) > maxPortList {
			return ""
		}
		list += fmt.Sprint(port) + ","
	}
	return list
}

// maxPortList bounds the bytes of a list of ports.
const maxPortList = 4096
