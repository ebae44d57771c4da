package demo

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

//go:embed manifests/*.yaml
var manifests embed.FS

// The frontends of the services, as in the manifests. A test compares them with the files.
var (
	webVIP4, webVIP6     = netip.MustParseAddrPort("203.0.113.10:80"), netip.MustParseAddrPort("[2001:db8:10::10]:80")
	webExt4, webExt6     = netip.MustParseAddrPort("198.51.100.20:80"), netip.MustParseAddrPort("[2001:db8:20::20]:80")
	echoVIP4, echoVIP6   = netip.MustParseAddrPort("203.0.113.11:7"), netip.MustParseAddrPort("[2001:db8:10::11]:7")
	localVIP4, localVIP6 = netip.MustParseAddrPort("203.0.113.12:80"), netip.MustParseAddrPort("[2001:db8:10::12]:80")
)

const (
	nodePort     = 30080
	targetPort   = 8080
	nodeName     = "gateway"
	webEndpoints = "web-endpoints.yaml"
)

// webVIP are both VIPs of the web service.
var webVIP = []netip.AddrPort{webVIP4, webVIP6}

// writeManifests writes the embedded manifests into the gateway's directory.
func writeManifests(g *launch.Gateway) error {
	names, err := fs.Glob(manifests, "manifests/*.yaml")
	if err != nil {
		return err
	}
	for _, name := range names {
		text, err := manifests.ReadFile(name)
		if err != nil {
			return err
		}
		if err := g.Write(path.Base(name), text); err != nil {
			return err
		}
	}
	return nil
}

// endpointSlices are the slices of a Service, in the order of the file.
type endpointSlices []*discoveryv1.EndpointSlice

func parseSlices(text []byte) (list endpointSlices, err error) {
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		s := &discoveryv1.EndpointSlice{}
		if err := yaml.UnmarshalStrict(document, s); err != nil {
			return nil, fmt.Errorf("read endpoint slices: %w", err)
		}
		list = append(list, s)
	}
	return list, nil
}

func (list endpointSlices) text() ([]byte, error) {
	var documents [][]byte
	for _, s := range list {
		text, err := yaml.Marshal(s)
		if err != nil {
			return nil, fmt.Errorf("write endpoint slices: %w", err)
		}
		documents = append(documents, text)
	}
	return bytes.Join(documents, []byte("---\n")), nil
}

var errNoFamily = errors.New("an endpoint slice has an address family that the demo does not use")

// set makes exactly these hosts the endpoints of every slice.
func (list endpointSlices) set(hosts []*topo.Host) error {
	for _, s := range list {
		s.Endpoints = nil
		for _, h := range hosts {
			var a netip.Addr
			switch s.AddressType {
			case discoveryv1.AddressTypeIPv4:
				a = h.Addr4()
			case discoveryv1.AddressTypeIPv6:
				a = h.Addr6()
			default:
				return fmt.Errorf("%w: %s", errNoFamily, s.AddressType)
			}
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()}, NodeName: &h.Name})
		}
	}
	return nil
}

// webEndpointsOf returns the manifest of web's endpoints, with these hosts.
func webEndpointsOf(hosts []*topo.Host) ([]byte, error) {
	text, err := manifests.ReadFile("manifests/" + webEndpoints)
	if err != nil {
		return nil, err
	}
	list, err := parseSlices(text)
	if err != nil {
		return nil, err
	}
	if err := list.set(hosts); err != nil {
		return nil, err
	}
	return list.text()
}

// without returns the hosts except one.
func without(hosts []*topo.Host, gone *topo.Host) []*topo.Host {
	return slices.DeleteFunc(slices.Clone(hosts), func(h *topo.Host) bool { return h == gone })
}

func names(hosts []*topo.Host) string {
	var list []string
	for _, h := range hosts {
		list = append(list, h.Name)
	}
	return strings.Join(list, " ")
}
