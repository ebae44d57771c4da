package allocate

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"sluice.dev/sluice/allocate/pools"
	"sluice.dev/sluice/internal/kubewatch"
	"sluice.dev/sluice/internal/wake"
)

// nodeAddress is the reason of Events about pools that have addresses of Nodes, and about Services
// that have one.
const nodeAddress = "NodeAddress"

func newNodes(client kubernetes.Interface) (cache.SharedIndexInformer, error) {
	api := client.CoreV1().Nodes()
	i, err := kubewatch.NewInformer(&corev1.Node{}, "", api.List, api.Watch)
	if err != nil {
		return nil, err
	}
	return i, i.SetTransform(func(o any) (any, error) { // a Node is some 20 KiB
		if n, is := o.(*corev1.Node); is {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID,
				ResourceVersion: n.ResourceVersion}, Status: corev1.NodeStatus{Addresses: n.Status.Addresses}}, nil
		}
		return o, nil
	})
}

// followNodes keeps the addresses of Nodes from Services. It returns when they are known, or when
// they cannot be listed, as without the right to: then addresses are given nevertheless, and nodes
// are followed as soon as they can be listed.
func (c *controller) followNodes(ctx context.Context, running *sync.WaitGroup) error {
	i, err := newNodes(c.client)
	if err != nil {
		return err
	}
	keep := func(o any) {
		if n, is := o.(*corev1.Node); is {
			c.keepNode(n.Name, addressesOfNode(n))
		}
	}
	handled, err := i.AddEventHandler(c.beating("Nodes", cache.ResourceEventHandlerFuncs{
		AddFunc: keep, UpdateFunc: func(_, o any) { keep(o) }, DeleteFunc: func(o any) {
			if _, name, err := cache.SplitMetaNamespaceKey(keyOf(o)); err == nil {
				c.keepNode(name, nil)
			}
		},
	}))
	if err != nil {
		return fmt.Errorf("follow Nodes: %w", err)
	}
	refused := wake.NewFlag()
	if err := kubewatch.OnListError(i, func(err error, lasts, other bool) {
		if lasts {
			refused.Raise()
		}
		if other {
			c.log.Warn("Nodes cannot be listed: until they can, a pool that has their addresses gives them",
				"error", err)
		}
	}); err != nil {
		return fmt.Errorf("follow Nodes: %w", err)
	}
	return listed(ctx, running, i, handled.HasSynced, refused, func() {})
}

// keyOf returns the key of an object that may be known only by it.
func keyOf(o any) string {
	key, _ := cache.DeletionHandlingMetaNamespaceKeyFunc(o) // its error is of objects that have no name
	return key
}

// addressesOfNode returns those that other machines reach a Node at, in order.
func addressesOfNode(n *corev1.Node) (list []netip.Addr) {
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue
		}
		if address, err := netip.ParseAddr(a.Address); err == nil {
			list = append(list, address.Unmap().WithZone(""))
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// nodeKey is of the claim for a Node.
func nodeKey(name string) string { return "node: " + name }

// keepNode keeps the addresses of a Node from all Services that do not have them already.
func (c *controller) keepNode(name string, addresses []netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.alloc.Occupied(nodeKey(name))
	if slices.Equal(before, addresses) {
		return
	}
	c.alloc.Occupy(nodeKey(name), "Node "+name, "", addresses)
	c.wake()
	pooled := func(a netip.Addr) bool {
		return slices.ContainsFunc(c.alloc.Pools(), func(p *pools.Pool) bool { return p.Contains(a) })
	}
	if len(addresses) == 0 {
		delete(c.nodes, name)
	} else {
		c.nodes[name] = addresses
	}
	both := slices.Concat(before, addresses)
	for _, a := range both {
		for _, key := range c.alloc.Holders(a) {
			c.queue.Add(key)
		}
	}
	if c.nodesChanged != nil && slices.ContainsFunc(both, pooled) {
		c.nodesChanged() // pools are read again, and say so
	}
}

// nodesIn returns what is to be said of a pool that has addresses of Nodes; "" if it has none.
func (c *controller) nodesIn(p *pools.Pool) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	first, at, more := "", netip.Addr{}, 0
	for name, addresses := range c.nodes {
		for _, a := range addresses {
			if !p.Contains(a) {
				continue
			}
			if more++; first == "" || a.Less(at) || a == at && name < first {
				first, at = name, a
			}
		}
	}
	if more == 0 {
		return ""
	}
	text := fmt.Sprintf("%s is an address of Node %s", at, first)
	if more > 1 {
		text += fmt.Sprintf(", and %d more of the pool are Nodes', too", more-1)
	}
	return text + ": no Service gets it; take the addresses of Nodes out of the pool"
}

// noteNodes adds a note where a Service has the address of a Node, which it was given before the
// Node had it.
func (c *controller) noteNodes(r *pools.Result) {
	for _, a := range r.Addresses {
		if by := c.alloc.OccupiedBy(a, "Node "); by != "" {
			r.Notes = append(r.Notes, &pools.Refusal{Reason: nodeAddress, Message: fmt.Sprintf(
				"%s is an address of %s, too, and connections to one of the two fail: have the Service ask for "+
					"another address", a, by)})
		}
	}
}
