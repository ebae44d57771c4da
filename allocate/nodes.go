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

// nodeAddress is the reason of Events about pools that contain addresses of Nodes, and about
// Services that have one.
const nodeAddress = "NodeAddress"

func newNodes(client kubernetes.Interface) (*kubewatch.Informer, error) {
	api := client.CoreV1().Nodes()
	i, err := kubewatch.NewInformer(&corev1.Node{}, "", api.List, api.Watch)
	if err != nil {
		return nil, err
	}
	return i, i.SetTransform(func(o any) (any, error) { // a whole Node takes some 20 KiB
		if n, is := o.(*corev1.Node); is {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID,
				ResourceVersion: n.ResourceVersion}, Status: corev1.NodeStatus{Addresses: n.Status.Addresses}}, nil
		}
		return o, nil
	})
}

// followNodes reserves the addresses of Nodes. It returns when they are known, or when Nodes cannot
// be listed, for example without the right to: then addresses are given without that check until a
// list succeeds.
func (c *controller) followNodes(ctx context.Context, running *sync.WaitGroup) error {
	i, err := newNodes(c.client)
	if err != nil {
		return err
	}
	c.config.Metrics.reads("Nodes", i)
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
	if err := kubewatch.OnListError(i, func(err error, persistent, changed bool) {
		if persistent {
			refused.Raise()
		}
		if changed {
			c.log.Warn("Nodes cannot be listed: until they can, pools that contain their addresses give them",
				"error", err)
		}
	}); err != nil {
		return fmt.Errorf("follow Nodes: %w", err)
	}
	return listed(ctx, running, i, handled.HasSynced, refused, func() {})
}

// keyOf returns the key of an object or of a deletion whose object is unknown.
func keyOf(o any) string {
	key, _ := cache.DeletionHandlingMetaNamespaceKeyFunc(o) // fails only for objects without a name
	return key
}

// addressesOfNode returns the internal and external addresses of a Node, in order.
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

// nodeKey is the key of the reservation for a Node.
func nodeKey(name string) string { return "node: " + name }

// keepNode reserves the addresses of a Node. Services that already have one keep it.
func (c *controller) keepNode(name string, addresses []netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.alloc.Reserved(nodeKey(name))
	if slices.Equal(before, addresses) {
		return
	}
	c.alloc.Reserve(nodeKey(name), "Node "+name, "", addresses)
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
		c.nodesChanged() // pools are read again, which reports it
	}
}

// nodesIn returns a message about the addresses of Nodes in a pool; "" if it has none.
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
		text += fmt.Sprintf(", and %d more of the pool are addresses of Nodes", more-1)
	}
	return text + ": no Service gets it; take the addresses of Nodes out of the pool"
}

// noteNodes adds a note if a Service has the address of a Node: the Service got it before the Node.
func (c *controller) noteNodes(r *pools.Result) {
	for _, a := range r.Addresses {
		if by := c.alloc.ReservedBy(a, "Node "); by != "" {
			r.Notes = append(r.Notes, &pools.Refusal{Reason: nodeAddress, Message: fmt.Sprintf(
				"%s is also an address of %s, and connections to one of the two fail: have the Service ask for "+
					"another address", a, by)})
		}
	}
}
