package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"sluice.dev/sluice/allocate/assign"
	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/files"
	"sluice.dev/sluice/control/k8s"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/kubeconfig"
	"sluice.dev/sluice/internal/wake"
	"sluice.dev/sluice/serve/status"
)

// inputs own the sources of Services, EndpointSlices and the Node.
type inputs struct {
	tracker    *tracker.Tracker
	kubernetes *k8s.Watcher     // nil if it is not a source
	files      *files.Watcher   // nil if they are not a source
	addresses  *assign.Assigner // gives addresses to Services of files; nil without files
	reading    bool
	// nodeChanged receives after a change of the own Node.
	nodeChanged wake.Flag
}

// make makes the sources of a configuration. They read nothing yet.
func (o *inputs) make(c *config.Configuration, log *slog.Logger, beats *heartbeat.Set) error {
	o.tracker, o.nodeChanged = tracker.New(), wake.NewFlag()
	if c.Manifests.Directory != "" {
		o.addresses = assign.New(assign.Config{Log: log, StateDir: c.StateDir})
		o.addresses.SetPools(c.Pools())
		o.files = files.New(files.Config{Log: log, Dir: c.Manifests.Directory, Tracker: o.tracker,
			Addresses: o.addresses, Beats: beats})
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
		Log: log, Client: client, Tracker: o.tracker, NodeName: node, AllNodes: c.DirectReturn.VNI != 0,
		GroupNodes:           c.Group.Nodes,
		Beats:                beats,
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

// own lets this process write the file of addresses. It must have the lock on the flow table, so
// that no other process writes the file.
func (o *inputs) own(c *config.Configuration) {
	if o.addresses != nil {
		o.addresses.SetPools(c.Pools()) // they may have changed during a wait
		o.addresses.Own()
	}
}

// read starts to read the sources in goroutines of l, unless a standby has started it.
func (o *inputs) read(l *lifetime) {
	if o.reading {
		return
	}
	o.reading = true
	if o.files != nil {
		l.spawn(func() { _ = o.files.Run(l.ctx) })
	}
	if o.kubernetes != nil {
		l.spawn(func() { o.kubernetes.Run(l.ctx) })
	}
}

// reload passes the settings of a reload to the sources.
func (o *inputs) reload(c *config.Configuration) {
	if o.kubernetes != nil {
		o.kubernetes.SetStaleEndpointTimeout(c.Kubernetes.StaleEndpointTimeout.D())
	}
	if o.addresses != nil {
		o.addresses.SetPools(c.Pools())
	}
}

// leaving returns why this node is no gateway any more; empty if it is one.
func (o *inputs) leaving() string {
	if o.kubernetes == nil {
		return ""
	}
	return o.kubernetes.Leaving()
}

// writeEvents writes Events about problems until ctx is done. Of two processes only the one that
// forwards may do so.
func (o *inputs) writeEvents(ctx context.Context, c *config.Configuration, problems k8s.Problems) {
	if o.kubernetes != nil && c.Kubernetes.Events {
		o.kubernetes.RunEvents(ctx, problems)
	}
}

// noteNode is called by the control loop. It does not block.
func (o *inputs) noteNode(objects.NodeInfo) { o.nodeChanged.Raise() }

// views returns the state of the sources.
func (o *inputs) views(st *loop.Status) (list []status.SourceView) {
	for _, s := range st.Sources {
		v := status.SourceView{Name: s.Source.Kind + ":" + s.Source.Path, Synced: s.Synced, Read: s.Read,
			Objects: s.Objects, Error: s.Error, ReadAt: st.At}
		if s.Applied {
			v.Applied = s.Read
		}
		list = append(list, v)
	}
	if o.kubernetes == nil {
		return list
	}
	for i, s := range o.kubernetes.Status() {
		v := &list[i] // feeds returns these first, in the same order
		v.ReadAt = s.Heard
		if s.Err != nil {
			v.Error = fmt.Sprintf("since %s: %v", s.Since.UTC().Format(time.RFC3339), s.Err)
		}
	}
	return list
}
