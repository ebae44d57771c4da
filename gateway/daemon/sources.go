package daemon

import (
	"context"
	"fmt"
	"time"

	"sluice.dev/sluice/allocate/assign"
	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/files"
	"sluice.dev/sluice/control/k8s"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/internal/kubeconfig"
	"sluice.dev/sluice/internal/wake"
	"sluice.dev/sluice/serve/status"
)

// inputs are where Services, EndpointSlices and the Node are read.
type inputs struct {
	tracker    *tracker.Tracker
	kubernetes *k8s.Watcher   // nil if it is not a source
	files      *files.Watcher // nil if it is not a source
	// addresses gives Services of files theirs; nil without files.
	addresses *assign.Assigner
	reading   bool
	// nodeChanged receives when something of the own Node changed.
	nodeChanged wake.Flag
}

// makeObjects makes the sources that the configuration names, which read nothing yet.
func (d *Daemon) makeObjects() error {
	o, c := &d.objects, d.config
	o.tracker, o.nodeChanged = tracker.New(), wake.NewFlag()
	if c.Manifests.Directory != "" {
		o.addresses = assign.New(assign.Config{Log: d.log, StateDir: c.StateDir})
		o.addresses.SetPools(c.Pools())
		o.files = files.New(files.Config{Log: d.log, Dir: c.Manifests.Directory, Tracker: o.tracker,
			Addresses: o.addresses, Beats: &d.beats})
	}
	if !c.Kubernetes.Enabled {
		return nil
	}
	client, err := kubeconfig.Load(c.Kubernetes.Kubeconfig, "kubernetes.kubeconfig")
	if err != nil {
		return err
	}
	node, _ := c.Node() // checked at start
	o.kubernetes, err = k8s.New(k8s.Config{
		Log: d.log, Client: client, Tracker: o.tracker, NodeName: node, Beats: &d.beats,
		StaleEndpointTimeout: c.Kubernetes.StaleEndpointTimeout.D(),
		Belongs:              k8s.Belongs{NodeSelector: c.Kubernetes.NodeSelector, DaemonSet: c.Kubernetes.DaemonSet},
	})
	return err
}

// feeds returns the sources that the control loop waits for.
func (o *inputs) feeds() (list []tracker.Feed) {
	if o.kubernetes != nil {
		list = append(list, o.kubernetes.Feeds()...)
	}
	if o.files != nil {
		list = append(list, o.files)
	}
	return list
}

// ownAddresses makes the file of addresses this process's, which has the lock on the flow table: no
// other one writes it.
func (o *inputs) ownAddresses(c *config.Configuration) {
	if o.addresses != nil {
		o.addresses.SetPools(c.Pools()) // they may have changed during a wait
		o.addresses.Own()
	}
}

// readObjects starts reading, unless a standby has.
func (d *Daemon) readObjects(ctx context.Context) {
	o := &d.objects
	if o.reading {
		return
	}
	o.reading = true
	if o.files != nil {
		d.spawn(func() { _ = o.files.Run(ctx) })
	}
	if o.kubernetes != nil {
		d.spawn(func() { o.kubernetes.Run(ctx) })
	}
}

// writeEvents starts to write Events about problems. Of two processes only the one that forwards
// does.
func (d *Daemon) writeEvents(ctx context.Context) {
	if k := d.objects.kubernetes; k != nil && d.configuration().Kubernetes.Events {
		d.spawn(func() { k.RunEvents(ctx, d.loop.Problems) })
	}
}

// noteNode is called by the control loop. It does not block.
func (o *inputs) noteNode(objects.NodeInfo) { o.nodeChanged.Raise() }

// sourceViews returns the state of the sources.
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
