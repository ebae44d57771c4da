package daemon

import (
	"errors"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/control/hostlink"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/xdpprog"
)

// steering is the kernel program as the control loop sees it: it translates
// control's sets into xdpprog's calls. One object that is refused does not keep the
// others from being done.
type steering struct {
	mu sync.Mutex // the control loop and the reopening of ports share the maps
	s  *xdpprog.Steering
}

// Open implements loop.Steering. Addresses come first: a frontend's entry is of
// no use before its address is known.
func (k *steering) Open(set *steer.Set) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var o opening
	for _, a := range set.Addrs {
		if o.refused(k.s.OpenAddr(a.Addr, addrFlags(a.Flags))) {
			o.set.Addrs = append(o.set.Addrs, a)
		}
	}
	for _, f := range set.Frontends {
		if o.refused(k.s.OpenFrontend(xdpprog.FrontendKey(f))) {
			o.set.Frontends = append(o.set.Frontends, f)
		}
	}
	for _, n := range set.NodePorts {
		o.refused(k.s.OpenNodePort(n.V6, n.Proto, n.Port))
	}
	for _, f := range set.KeepSources {
		if o.refused(k.s.KeepSource(xdpprog.FrontendKey(f))) {
			o.set.KeepSources = append(o.set.KeepSources, f)
		}
	}
	return o.err()
}

// opening gathers what finds no room in the kernel program's tables, apart from errors that
// may pass.
type opening struct {
	set    steer.Set
	full   error // the first
	others []error
}

// refused says whether an entry found no room.
func (o *opening) refused(err error) bool {
	if !errors.Is(err, unix.E2BIG) {
		o.others = append(o.others, err)
		return false
	}
	if o.full == nil {
		o.full = err
	}
	return true
}

func (o *opening) err() error {
	if err := errors.Join(o.others...); err != nil || o.full == nil {
		return errors.Join(err, o.full)
	}
	return &steer.Refusal{Set: o.set, Err: o.full}
}

// Close implements loop.Steering.
func (k *steering) Close(set *steer.Set) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for _, f := range set.Frontends {
		errs = append(errs, k.s.CloseFrontend(xdpprog.FrontendKey(f)))
	}
	for _, n := range set.NodePorts {
		errs = append(errs, k.s.CloseNodePort(n.V6, n.Proto, n.Port))
	}
	for _, f := range set.KeepSources {
		errs = append(errs, k.s.DropSource(xdpprog.FrontendKey(f)))
	}
	for _, a := range set.Addrs {
		errs = append(errs, k.s.CloseAddr(a.Addr, addrFlags(a.Flags)))
	}
	return errors.Join(errs...)
}

// Held implements loop.Steering.
func (k *steering) Held() steer.Set {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held()
}

func (k *steering) held() (set steer.Set) {
	r := k.s.Rules()
	for _, f := range r.Frontends {
		set.Frontends = append(set.Frontends, services.FrontendKey(f))
	}
	for _, n := range r.NodePorts {
		set.NodePorts = append(set.NodePorts, steer.NodePort(n))
	}
	for _, f := range r.Sources {
		set.KeepSources = append(set.KeepSources, steer.KeepSource(f))
	}
	for a, flags := range r.Addrs {
		set.Addrs = append(set.Addrs, steer.OwnAddr{Addr: a, Flags: serviceFlags(flags)})
	}
	return set
}

// Replace implements loop.Steering.
func (k *steering) Replace(set *steer.Set) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, err := k.s.Reconcile(rules(set))
	if !onlyFull(err) {
		return err
	}
	held := k.held()
	return &steer.Refusal{Set: set.Without(&held), Err: first(err)}
}

// onlyFull says whether there are errors and all are of tables without room.
func onlyFull(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !onlyFull(e) })
	}
	return errors.Is(err, unix.E2BIG)
}

// first is one of joined errors, of which there may be many alike.
func first(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return first(joined.Unwrap()[0])
	}
	return err
}

// settings writes the numbers the programs go by.
func (k *steering) settings(c *config.Configuration, host *hostlink.HostLink) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := xdpprog.Settings{
		SNATFirst: c.SNAT.Ports.First, SNATCount: uint16(c.SNAT.Ports.Count()),
		Unserved: c.UnservedVIPPort != config.UnservedPass, PassAfter: c.Heartbeat.PassAfter.D(),
	}
	if host != nil {
		s.HostLinkIndex = host.KernelIndex
	}
	return k.s.SetSettings(s)
}

// attach puts the program for a port on its device.
func (k *steering) attach(p *port) (*xdpprog.Port, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	ifindex := p.index()
	if p.host {
		return k.s.AttachHostLink(ifindex, p.name)
	}
	mode := map[config.Mode]xdpprog.AttachMode{
		config.ModeAuto: xdpprog.Auto, config.ModeNative: xdpprog.Native, config.ModeGeneric: xdpprog.Generic,
	}[p.config.Mode]
	switch {
	case mode != xdpprog.Auto:
	case p.needsGeneric() != "":
		mode = xdpprog.Generic
	case p.prefersNative():
		mode = xdpprog.PreferNative
	}
	return k.s.Attach(ifindex, p.name, mode)
}

// attachEgress catches replies of local endpoints on the way out of every NIC.
func (k *steering) attachEgress(ports []*port) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for _, p := range ports {
		if !p.host && p.isOpen() {
			if err := k.s.AttachEgress(p.index(), p.name); !errors.Is(err, xdpprog.ErrAttached) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

func (k *steering) detachOthers() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.s.DetachOthers()
}

// close detaches and unpins everything, or leaves it all to a successor.
func (k *steering) close(detach bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.s.Close(detach)
}

// rules is a whole set in xdpprog's terms.
func rules(set *steer.Set) xdpprog.Rules {
	r := xdpprog.Rules{Addrs: make(map[header.Addr]xdpprog.AddrFlags, len(set.Addrs))}
	for _, f := range set.Frontends {
		r.Frontends = append(r.Frontends, xdpprog.FrontendKey(f))
	}
	for _, n := range set.NodePorts {
		r.NodePorts = append(r.NodePorts, xdpprog.NodePort(n))
	}
	for _, f := range set.KeepSources {
		r.Sources = append(r.Sources, xdpprog.FrontendKey(f))
	}
	for _, a := range set.Addrs {
		r.Addrs[a.Addr] = addrFlags(a.Flags)
	}
	return r
}

// sameFlags are the flags of an address that control and xdpprog both know.
var sameFlags = [...]struct {
	services services.AddrFlags
	kernel   xdpprog.AddrFlags
}{{services.AddrVIP, xdpprog.AddrVIP}, {services.AddrNode, xdpprog.AddrNode}, {services.AddrSNAT, xdpprog.AddrSNAT}, {services.AddrLocal, xdpprog.AddrLocal}}

func addrFlags(f services.AddrFlags) (out xdpprog.AddrFlags) {
	for _, m := range sameFlags {
		if f&m.services != 0 {
			out |= m.kernel
		}
	}
	return out
}

func serviceFlags(f xdpprog.AddrFlags) (out services.AddrFlags) {
	for _, m := range sameFlags {
		if f&m.kernel != 0 {
			out |= m.services
		}
	}
	return out
}
