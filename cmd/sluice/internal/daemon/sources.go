package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/control/files"
	"sluice.dev/sluice/control/k8s"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/control/neigh"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/status"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// inputs are where Services, EndpointSlices and the Node are read.
type inputs struct {
	tracker    *tracker.Tracker
	kubernetes *k8s.Watcher   // nil if it is not a source
	files      *files.Watcher // nil if it is not a source
	// nodeChanged receives when something of the own Node changed.
	nodeChanged chan struct{}
}

// makeObjects makes the sources that the configuration names, which read nothing yet.
func (d *Daemon) makeObjects() error {
	o, c := &d.objects, d.config
	o.tracker, o.nodeChanged = tracker.New(), make(chan struct{}, 1)
	if c.Manifests.Directory != "" {
		o.files = files.New(files.Config{Log: d.log, Dir: c.Manifests.Directory, Tracker: o.tracker})
	}
	if !c.Kubernetes.Enabled {
		return nil
	}
	client, err := k8s.ClientConfig(c.Kubernetes.Kubeconfig)
	if err != nil {
		return err
	}
	node, _ := c.Node() // checked at start
	o.kubernetes, err = k8s.New(k8s.Config{
		Log: d.log, Client: client, Tracker: o.tracker, NodeName: node, Hold: c.Kubernetes.Hold.D(),
	})
	return err
}

// feeds are what the control loop waits for.
func (o *inputs) feeds() (list []tracker.Feed) {
	if o.kubernetes != nil {
		list = append(list, o.kubernetes.Feeds()...)
	}
	if o.files != nil {
		list = append(list, o.files)
	}
	return list
}

// readObjects starts reading.
func (d *Daemon) readObjects(ctx context.Context) {
	o := &d.objects
	if o.files != nil {
		d.goes(func() { _ = o.files.Run(ctx) })
	}
	if o.kubernetes == nil {
		return
	}
	d.goes(func() { o.kubernetes.Run(ctx) })
	if d.config.Kubernetes.Events {
		d.goes(func() { o.kubernetes.RunEvents(ctx, d.loop.Problems) })
	}
}

// noteNode is called by the control loop, which it must not hold up.
func (o *inputs) noteNode(objects.NodeInfo) {
	select {
	case o.nodeChanged <- struct{}{}:
	default: // whoever reads will see this change, too
	}
}

// proxied is what the configuration says of how Services are served.
func proxied(p *config.Proxy, to *compiler.Config) {
	to.ClusterIPs, to.ClusterCIDRs = p.ClusterIPs, p.ClusterCIDRs
	to.MasqueradeAll, to.StrictSourceRanges = p.MasqueradeAll, p.StrictSourceRanges
	to.Scheduler, _ = services.ParseScheduler(string(p.Scheduler)) // checked at start
	to.RetryOther = p.RetryOther
}

// nodePortAddresses are those of this node that accept node ports: what the configuration
// selects, or all of our own interfaces.
func nodePortAddresses(c *config.Configuration, all []neigh.Address, node objects.NodeInfo) (list []header.Addr) {
	primary := primaryAddresses(all, node)
	selected := func(a neigh.Address) bool {
		if len(c.NodeAddresses) == 0 {
			return a.Link >= 0
		}
		return slices.ContainsFunc(c.NodeAddresses, func(s config.AddressSelector) bool {
			if s.Primary {
				return slices.Contains(primary, a.Prefix.Addr())
			}
			return s.Prefix.Contains(a.Prefix.Addr())
		})
	}
	for _, a := range all {
		if a.Global && selected(a) {
			list = append(list, header.AddrFrom(a.Prefix.Addr()))
		}
	}
	return list
}

// primaryAddresses are the first of each family that the Node object has, as kube-proxy
// takes them (k8s.io/kubernetes cmd/kube-proxy/app/server.go detectNodeIPs). While no
// Node is known they are the first of each family on our own interfaces.
func primaryAddresses(all []neigh.Address, node objects.NodeInfo) (list []netip.Addr) {
	var have [2]bool
	take := func(a netip.Addr) {
		if f := &have[a.BitLen()/128]; !*f {
			*f, list = true, append(list, a)
		}
	}
	for _, a := range node.Addresses {
		take(a)
	}
	if node.Known {
		return list
	}
	for _, a := range all {
		if a.Global && a.Usable && !a.Secondary && a.Link >= 0 {
			take(a.Prefix.Addr())
		}
	}
	return list
}

// sourceViews lists the sources with how they are doing.
func (d *Daemon) sourceViews(st *loop.Status) []status.SourceView {
	list := sources(st)
	if d.objects.kubernetes == nil {
		return list
	}
	for i, s := range d.objects.kubernetes.Status() {
		v := &list[i] // feeds has them in this order, first
		v.ReadAt = s.Heard
		if s.Err != nil {
			v.Error = fmt.Sprintf("since %s: %v", s.Since.UTC().Format(time.RFC3339), s.Err)
		}
	}
	return list
}
