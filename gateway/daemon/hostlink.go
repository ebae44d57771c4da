package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/gateway/ports"
	"sluice.dev/sluice/gateway/steering"
	"sluice.dev/sluice/gateway/workers"
	"sluice.dev/sluice/host/hostlink"
	"sluice.dev/sluice/host/neigh"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/host/nic/frames"
	"sluice.dev/sluice/serve/status"
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

// hostLinkOf describes the pair that a configuration needs.
func hostLinkOf(c *config.Configuration, workers, mtu int) hostlink.Config {
	user, kernel := c.Tuning.HostLinkEnds()
	return hostlink.Config{
		Name: user, KernelName: kernel, Queues: workers, MTU: mtu, Addresses: c.HostLink.Addresses,
	}
}

// hostSide owns the host link, and sets up the kernel by it and by the configuration: the
// parameters of the kernel programs, and the routes of source addresses.
type hostSide struct {
	settings *settings
	log      *slog.Logger
	users    hostUsers // set before any of the methods that change the kernel
	lockFD   int       // the lock on the pair; -1 without one

	routes sourceRoutes
	// former are the source addresses that only flows need; nil before the first look.
	former atomic.Pointer[[]netip.Addr]

	mu   sync.Mutex // guards the fields below
	pair *hostlink.HostLink
	err  error // of the last repair
}

// hostUsers use the host link.
type hostUsers struct {
	program *steering.Program
	sources func() []netip.Addr // that live flows have, of program
	mirror  *neigh.Mirror
	workers *workers.Group
	ports   *ports.Set
	frames  frames.Choice
}

// sourceRoutes are the routes of source addresses to the host link.
type sourceRoutes struct {
	sync.Mutex              // held while the kernel is set up, so that no older state replaces a newer one
	addrs      []netip.Addr // with a route
	flowsOnly  bool         // only flows need some of these
}

// make creates the pair, or finds the predecessor's pair, which must not change before the
// predecessor has handed over.
func (h *hostSide) make(ofPredecessor bool) error {
	c := h.settings.config()
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
	get := hostlink.Ensure
	if ofPredecessor {
		get = hostlink.Find
	}
	if h.pair, err = get(hostLinkOf(c, plan.Workers, hostMTU(found))); err != nil {
		return err
	}
	if fd := h.pair.LockFD(); fd >= 0 {
		h.lockFD = fd
	}
	return nil
}

// current returns the pair; nil if there is none.
func (h *hostSide) current() *hostlink.HostLink {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pair
}

// repairErr returns the error of the last repair.
func (h *hostSide) repairErr() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// condition reports a repair that failed.
func (h *hostSide) condition() (list []status.ConditionView) {
	if err := h.repairErr(); err != nil {
		list = append(list, status.Failed("host-link", "cannot be repaired, so the kernel receives no packet from the "+
			"gateway: "+err.Error()))
	}
	return list
}

// watch repairs the pair if it was deleted or changed, and raises its MTU to the largest MTU of
// the interfaces.
func (h *hostSide) watch(ctx context.Context) {
	pair := h.current()
	if pair == nil {
		return
	}
	why := h.repairErr()
	if err := pair.Check(); errors.Is(err, hostlink.ErrUnread) {
		h.log.Debug("host link stays as it is", "error", err)
		return
	} else if err != nil {
		why = err
	} else if mtu := h.mtu(); mtu > pair.MTU {
		why = fmt.Errorf("MTU is %d, interfaces have %d", pair.MTU, mtu)
	}
	if why != nil && h.setUp(ctx, pair, why.Error()) {
		h.log.Warn("host link repaired", "interface", pair.Name, "why", why)
	}
}

// setUpReceived sets up the predecessor's pair by this process's version and configuration.
func (h *hostSide) setUpReceived(ctx context.Context) {
	if pair := h.current(); pair != nil {
		h.setUp(ctx, pair, "the previous process has set it up")
	}
}

// mtu returns the MTU that the interfaces need now.
func (h *hostSide) mtu() int {
	return hostMTU(devices.Found{Devices: h.users.ports.Devices(), Frames: h.users.frames})
}

// setUp makes the pair or sets it up again, and reports whether that succeeded. It never lowers the
// MTU, because longer packets may be on their way.
func (h *hostSide) setUp(ctx context.Context, pair *hostlink.HostLink, why string) bool {
	next, err := hostlink.Ensure(hostLinkOf(h.settings.atStart, h.users.workers.Len(), max(h.mtu(), pair.MTU)))
	if err == nil {
		err = h.use(ctx, next)
	}
	h.mu.Lock()
	before := h.err
	h.err = err
	h.mu.Unlock()
	if err != nil && ctx.Err() == nil && (before == nil || before.Error() != err.Error()) {
		h.log.Error("host link cannot be repaired, trying again", "interface", pair.Name, "why", why, "error", err)
	}
	return err == nil
}

// use passes the two ends to all users. The port opens its sockets again when it finds that its
// device was created again. After an error the old pair stays, so that the next check repeats the
// repair.
func (h *hostSide) use(ctx context.Context, pair *hostlink.HostLink) error {
	mac := fastpath.HostMAC{Kernel: pair.KernelMAC, User: pair.MAC}
	if err := h.users.workers.SetHostMAC(ctx, mac); err != nil {
		return err
	}
	if err := h.users.mirror.SetLinks(mirrorLinks(h.settings.atStart), mirrorHost(pair)); err != nil {
		return err
	}
	h.routes.Lock()
	defer h.routes.Unlock()
	if err := h.users.program.SetSettings(h.settings.config(), pair); err != nil {
		return err
	}
	if err := h.routeSources(pair, h.readSources()); err != nil {
		return err
	}
	h.mu.Lock()
	h.pair = pair
	h.mu.Unlock()
	return nil
}

// applySettings sets the parameters of the kernel programs.
func (h *hostSide) applySettings() error {
	h.routes.Lock()
	defer h.routes.Unlock()
	return h.users.program.SetSettings(h.settings.config(), h.current())
}

// watchSettings sets the parameters again if that failed, or net.ipv4.ip_local_port_range has
// changed.
func (h *hostSide) watchSettings(context.Context) {
	if !h.users.program.SettingsDue() {
		return
	}
	if err := h.applySettings(); err != nil {
		h.log.Error("kernel program settings", "error", err)
	}
}

// applySources updates the routes of source addresses.
func (h *hostSide) applySources() {
	h.routes.Lock()
	defer h.routes.Unlock()
	used := h.readSources()
	if pair := h.current(); pair != nil {
		if err := h.routeSources(pair, used); err != nil {
			h.log.Warn("source addresses have no route to the host link: packets to them without a flow follow "+
				"the kernel's other routes", "error", err)
		}
	}
}

// watchSources removes the routes of source addresses whose last flow has ended.
func (h *hostSide) watchSources() {
	h.routes.Lock()
	flowsOnly := h.routes.flowsOnly
	h.routes.Unlock()
	if flowsOnly {
		h.applySources()
	}
}

// readSources returns the source addresses of live flows. It sets former to the addresses among
// them that are not configured, with a pair or without one. routes must be locked.
func (h *hostSide) readSources() (used []netip.Addr) {
	configured, former := configuredSources(h.settings.config()), []netip.Addr{}
	used = h.users.sources()
	for _, a := range used {
		if !slices.Contains(configured, a) {
			former = append(former, a)
		}
	}
	h.former.Store(&former)
	h.routes.flowsOnly = len(former) > 0
	return used
}

// configuredSources returns the source addresses of a configuration.
func configuredSources(c *config.Configuration) []netip.Addr {
	return slices.Concat(c.SNAT.Addresses, groupAddresses(c))
}

// routeSources makes the kernel route source addresses that no interface has to the host link.
// Replies that the kernel sends, and packets without a flow, are sent to these addresses; they
// would otherwise leave by the default route and come back. used are the addresses that live flows
// have. routes must be locked.
func (h *hostSide) routeSources(pair *hostlink.HostLink, used []netip.Addr) error {
	addrs := configuredSources(h.settings.config())
	for _, a := range used {
		gateway := pair.Addr4
		if a.Is6() {
			gateway = pair.Addr6
		}
		if gateway.IsValid() && !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	addrs = withoutOwn(addrs, h.users.mirror.Addresses())
	if err := pair.RouteSNAT(addrs); err != nil {
		return err
	}
	if !slices.Equal(addrs, h.routes.addrs) {
		h.log.Info("source addresses that no interface has are routed to the host link", "addresses", addrs,
			"interface", pair.KernelName)
	}
	h.routes.addrs = addrs
	return nil
}

// keepSources keeps steering replies to the ports and addresses that recovered flows have by an
// earlier configuration. It must precede SetSettings. The control loop closes the ports and
// addresses that no flow uses any more.
func (h *hostSide) keepSources() error {
	if err := h.users.program.MoveReplies(h.settings.config()); err != nil {
		return err
	}
	pair := h.current()
	if pair == nil || len(pair.Former) == 0 {
		return nil
	}
	h.log.Info("addresses of the host link stay for flows that have them", "addresses", pair.Former)
	return h.users.program.OpenSources(pair.Former)
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
