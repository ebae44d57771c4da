package pools

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Port is a port that a Service has at its addresses.
type Port struct {
	Protocol corev1.Protocol
	Number   int32
}

func (p Port) String() string { return fmt.Sprintf("%d/%s", p.Number, p.Protocol) }

// Sharing decides with which Services a Service shares its addresses: Services with equal keys and
// no common port, which, with externalTrafficPolicy Local, send to the same pods.
type Sharing struct {
	Key string // "": not shared
	// Backend is the selector of a Service with policy Local, "" with Cluster.
	Backend string
	// Cilium: the key is from lbipam.cilium.io. Such a Service shares only with Services that also
	// have one: in its own namespace and in namespaces that both list, with an equal policy and, if
	// that is Local, a selector.
	Cilium     bool
	Local      bool
	Namespace  string
	Namespaces []string // further ones; "*" is all
}

func sharingOf(s *corev1.Service) Sharing {
	local := s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	h := Sharing{Namespace: s.Namespace, Local: local}
	if h.Local {
		h.Backend = labels.Set(s.Spec.Selector).String()
	}
	var name string
	h.Key, name = annotation(s, sharingAnnotations)
	if h.Cilium = strings.Contains(name, "cilium"); h.Cilium {
		list, _ := annotation(s, []string{cilium + "sharing-cross-namespace",
			"io.cilium/lb-ipam-sharing-cross-namespace"})
		h.Namespaces = words(list)
	}
	return h
}

// with returns why two Services cannot share an address, and a message with a verb for the name of
// the other Service; "" if they can.
func (h *Sharing) with(other *Sharing) (Reason, string) {
	switch {
	case h.Key == "" && other.Key == "":
		return AddressTaken, "Service %s has it"
	case h.Key == "":
		return AddressTaken, "Service %s has it, and this one has no sharing key"
	case other.Key == "":
		return AddressTaken, "Service %s has it, and shares it with nobody"
	case h.Key != other.Key: // the message does not contain the key: anybody who knows it may share
		return BadSharingKey, "Service %s has it, with another sharing key"
	case h.Cilium != other.Cilium:
		return BadSharingKey, "Service %s has it: one of the two has a sharing key of lbipam.cilium.io, and " +
			"the other one of metallb.io"
	case h.Backend != other.Backend:
		return BadSharingKey, "Service %s has it: with externalTrafficPolicy Local both need it, and the same " +
			"selector"
	}
	if !h.Cilium {
		return "", ""
	}
	switch {
	case h.Namespace != other.Namespace && !(h.lists(other.Namespace) && other.lists(h.Namespace)):
		return BadSharingKey, "Service %s has it, in another namespace: both must list the other's in " +
			"lbipam.cilium.io/sharing-cross-namespace"
	case h.Local != other.Local || h.Local && h.Backend == "":
		return BadSharingKey, "Service %s has it: both need the same externalTrafficPolicy, and with Local a " +
			"selector"
	}
	return "", ""
}

func (h *Sharing) lists(namespace string) bool {
	return slices.Contains(h.Namespaces, "*") || slices.Contains(h.Namespaces, namespace)
}

func (h *Sharing) equals(other *Sharing) bool {
	return h.Key == other.Key && h.Backend == other.Backend && h.Cilium == other.Cilium && h.Local == other.Local &&
		h.Namespace == other.Namespace && slices.Equal(h.Namespaces, other.Namespaces)
}
