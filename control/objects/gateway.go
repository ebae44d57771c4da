package objects

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// AnnotationGroupSources is the annotation of a Node with the source addresses of its gateway in a
// group.
const AnnotationGroupSources = "sluice.dev/group-sources"

// GatewayNode has the fields of a v1 Node that decide whether its gateway is a member of a group.
// It is immutable.
type GatewayNode struct {
	Name string
	// UID is another one after the Node was deleted and made again.
	UID string
	// Selected: its labels match the group's selector.
	Selected bool
	// OutOfService: it has the taint node.kubernetes.io/out-of-service, by which an administrator
	// confirms that the machine does not run, and will not return with its memory.
	OutOfService bool
	// Addresses are status.addresses of type InternalIP, in their order.
	Addresses []netip.Addr
	// Sources is the annotation sluice.dev/group-sources; Annotated is false if there is none.
	Sources   string
	Annotated bool
}

// TrimGatewayNode copies the fields that are used. ok is false if the Node is no gateway of the
// group: it has neither the labels nor the annotation.
func TrimGatewayNode(in *corev1.Node, group labels.Selector) (n GatewayNode, ok bool) {
	n = GatewayNode{Name: in.Name, UID: string(in.UID), Selected: group.Matches(labels.Set(in.Labels))}
	n.Sources, n.Annotated = in.Annotations[AnnotationGroupSources]
	for _, a := range in.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		if ip, err := parseAddr(a.Address); err == nil {
			n.Addresses = append(n.Addresses, ip)
		}
	}
	n.OutOfService = slices.ContainsFunc(in.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService
	})
	return n, n.Selected || n.Annotated
}

// Equal reports whether two GatewayNodes are the same.
func (n *GatewayNode) Equal(o *GatewayNode) bool {
	return n.Name == o.Name && n.UID == o.UID && n.Selected == o.Selected && n.OutOfService == o.OutOfService &&
		n.Sources == o.Sources && n.Annotated == o.Annotated && slices.Equal(n.Addresses, o.Addresses)
}

// CompareGatewayNodes orders by name.
func CompareGatewayNodes(a, b GatewayNode) int { return cmp.Compare(a.Name, b.Name) }
