package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/host/hostlink"
	"sluice.dev/sluice/host/neigh"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/host/nic/frames"
)

// minHostMTU is the least MTU of IPv6 (RFC 8200 section 5).
const minHostMTU = 1280

// hostMTU returns the largest MTU of the interfaces, bounded by the longest packet.
func hostMTU(found devices.Found) int {
	mtu := minHostMTU
	for _, d := range found.Devices {
		mtu = max(mtu, d.MTU)
	}
	return min(mtu, frames.LongRoom(found.Frames.Size))
}

// hostLinkOf describes the pair.
func hostLinkOf(c *config.Configuration, workers, mtu int) hostlink.Config {
	ours, kernels := c.Tuning.HostLinkEnds()
	return hostlink.Config{
		Name: ours, KernelName: kernels, Queues: workers, MTU: mtu, Addresses: c.HostLink.Addresses,
	}
}

// makeHostLink creates the host link. That of a process which may go on itself is found only, and
// set up by setUpTaken.
func (d *Daemon) makeHostLink(context.Context) error {
	c := d.config
	if !c.HostLink.Enabled() {
		return nil
	}
	found, err := devices.Find(c)
	if err != nil {
		return err
	}
	plan, err := devices.NewPlan(found.Devices, c)
	if err != nil {
		return err
	}
	have := hostlink.Ensure
	if d.taking {
		have = hostlink.Find
	}
	if d.host, err = have(hostLinkOf(c, plan.Workers, hostMTU(found))); err != nil {
		return err
	}
	if lock := d.host.LockFD(); lock >= 0 {
		d.hostLock = lock
	}
	return nil
}

// hostLink returns the pair as it is now; nil if there is none.
func (d *Daemon) hostLink() *hostlink.HostLink {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.host
}

// watchHostLink repairs the pair if it was deleted or changed, and widens it
// for interfaces whose MTU was raised.
func (d *Daemon) watchHostLink(ctx context.Context) {
	h := d.hostLink()
	if h == nil {
		return
	}
	d.mu.Lock()
	why := d.hostErr // of the last repair
	d.mu.Unlock()
	if err := h.Check(); errors.Is(err, hostlink.ErrUnread) {
		d.log.Debug("host link stays as it is", "error", err)
		return
	} else if err != nil {
		why = err
	} else if mtu := d.hostMTU(); mtu > h.MTU {
		why = fmt.Errorf("MTU is %d, interfaces have %d", h.MTU, mtu)
	}
	if why != nil && d.setUpHostLink(ctx, h, why.Error()) {
		d.log.Warn("host link repaired", "interface", h.Name, "why", why)
	}
}

// setUpTaken sets up the pair that this process has taken, by its own version and configuration.
func (d *Daemon) setUpTaken(ctx context.Context) {
	if h := d.hostLink(); h != nil {
		d.setUpHostLink(ctx, h, "it was set up by the process before")
	}
}

// hostMTU returns the MTU that interfaces need now.
func (d *Daemon) hostMTU() int {
	return hostMTU(devices.Found{Devices: d.ports.Devices(), Frames: d.frames})
}

// setUpHostLink makes the pair, or sets it up, and notes whether that succeeded. It is never
// narrowed: packets are on their way.
func (d *Daemon) setUpHostLink(ctx context.Context, h *hostlink.HostLink, why string) (done bool) {
	next, err := hostlink.Ensure(hostLinkOf(d.fixed, d.workers.Len(), max(d.hostMTU(), h.MTU)))
	if err == nil {
		err = d.useHostLink(ctx, next)
	}
	d.mu.Lock()
	before := d.hostErr
	d.hostErr = err
	d.mu.Unlock()
	if err != nil && ctx.Err() == nil && (before == nil || before.Error() != err.Error()) {
		d.log.Error("host link cannot be repaired, trying again", "interface", h.Name, "why", why, "error", err)
	}
	return err == nil
}

// useHostLink passes the two ends to everything that uses them. The port opens its sockets again by
// itself, when it finds that its device was created again. After an error the old pair stays in
// d.host, so that the next check repeats the repair.
func (d *Daemon) useHostLink(ctx context.Context, h *hostlink.HostLink) error {
	mac := fastpath.HostMAC{Kernel: h.KernelMAC, User: h.MAC}
	if err := d.workers.SetHostMAC(ctx, mac); err != nil {
		return err
	}
	if err := d.mirror.SetLinks(mirrorLinks(d.fixed), mirrorHost(h)); err != nil {
		return err
	}
	d.hostMu.Lock()
	defer d.hostMu.Unlock()
	if err := d.steer.SetSettings(d.configuration(), h); err != nil {
		return err
	}
	if err := d.routeSources(h); err != nil {
		return err
	}
	d.mu.Lock()
	d.host = h
	d.mu.Unlock()
	return nil
}

// applySettings sets the parameters of the kernel programs.
func (d *Daemon) applySettings() error {
	d.hostMu.Lock()
	defer d.hostMu.Unlock()
	return d.steer.SetSettings(d.configuration(), d.hostLink())
}

// applySources brings the routes of source addresses up to date.
func (d *Daemon) applySources() {
	d.hostMu.Lock()
	defer d.hostMu.Unlock()
	if h := d.hostLink(); h != nil {
		if err := d.routeSources(h); err != nil {
			d.log.Warn("stray replies to source addresses go where the kernel's routes lead", "error", err)
		}
	}
}

// routeSources makes the kernel route source addresses that no interface has to the host link. They
// are destinations of replies that the kernel sends itself, and of packets without a flow, which
// would otherwise leave by the default route and come back. hostMu must be held.
func (d *Daemon) routeSources(h *hostlink.HostLink) error {
	configured := d.configuration().SNAT.Addresses
	addrs := slices.Clone(configured)
	for _, a := range d.steer.Sources() { // live flows have these
		gateway := h.Addr4
		if a.Is6() {
			gateway = h.Addr6
		}
		if gateway.IsValid() && !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	d.keptRoutes = len(addrs) > len(configured)
	addrs = withoutOwn(addrs, d.mirror.Addresses())
	if err := h.RouteSNAT(addrs); err != nil {
		return err
	}
	if !slices.Equal(addrs, d.routed) {
		d.log.Info("source addresses that no interface has are routed to the host link", "addresses", addrs,
			"interface", h.KernelName)
	}
	d.routed = addrs
	return nil
}

// withoutOwn leaves out the node's own addresses, which need no route.
func withoutOwn(addrs []netip.Addr, own []neigh.Address) (rest []netip.Addr) {
	for _, a := range addrs {
		if !slices.ContainsFunc(own, func(o neigh.Address) bool { return o.Prefix.Addr() == a }) {
			rest = append(rest, a)
		}
	}
	return rest
}

func mirrorLinks(c *config.Configuration) (links []neigh.LinkConfig) {
	for _, i := range c.Interfaces {
		links = append(links, neigh.LinkConfig{Name: i.Name})
	}
	return links
}

func mirrorHost(h *hostlink.HostLink) *neigh.HostLink {
	if h == nil {
		return nil
	}
	return &neigh.HostLink{KernelIndex: h.KernelIndex, KernelMAC: h.KernelMAC, UserMAC: h.MAC, MTU: h.MTU}
}
