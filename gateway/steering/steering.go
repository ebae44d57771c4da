// Package steering connects the control loop and the ports to the kernel program. It translates
// control's sets into calls of xdpprog, one at a time, and manages the bpffs on which the program
// and its maps are pinned.
package steering

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/host/hostlink"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/xdpprog"
)

// Program is the kernel program. It implements loop.Steering and ports.Program. An object that is
// rejected does not affect the others.
type Program struct {
	mu    sync.Mutex // the control loop and the opening of ports share the maps
	s     *xdpprog.Steering
	local config.PortRange // net.ipv4.ip_local_port_range of the last SetSettings, zero if it failed
}

// Prepare opens the maps that another process uses, and loads the programs (xdpprog.Prepare). Until
// Own, all calls but Counters and Arrivals block.
func Prepare(c *config.Configuration, log *slog.Logger) (*Program, error) {
	s, err := xdpprog.Prepare(programConfig(c, log))
	if err != nil {
		return nil, err
	}
	k := &Program{s: s}
	k.mu.Lock()
	return k, nil
}

// MoveReplies sets the source ports of a configuration as the ports to which replies come. Other
// ports from before stay steered until Replace has learnt which of them live flows use
// (xdpprog.Steering.MoveReplies). It precedes SetSettings.
func (k *Program) MoveReplies(c *config.Configuration) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.s.MoveReplies(c.SNAT.Ports.First, uint16(c.SNAT.Ports.Count()))
}

// OpenSources steers replies to the addresses to user space, as long as flows need them.
func (k *Program) OpenSources(list []netip.Addr) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for _, a := range list {
		errs = append(errs, k.s.OpenAddr(header.AddrFrom(a), xdpprog.AddrSNAT))
	}
	return errors.Join(errs...)
}

// Sources returns, sorted, the steered source addresses that the node does not have.
func (k *Program) Sources() (list []netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range k.s.Sources() {
		list = append(list, a.Netip())
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

// Left returns the indexes of interfaces on which a predecessor has left a program, except the
// configured ones.
func (k *Program) Left(configured ...int) []int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.s.Left(configured...)
}

// Take makes a prepared Program, which the other process no longer uses, steer replies to the
// source ports and addresses of a configuration and a snapshot, in addition to the other process's:
// workers may use them at once. It must be called before Own, by the goroutine that called Prepare.
func (k *Program) Take(c *config.Configuration, snapshot *services.Snapshot) error {
	errs := []error{k.s.MoveReplies(c.SNAT.Ports.First, uint16(c.SNAT.Ports.Count()))}
	for _, a := range slices.Concat(snapshot.SNAT4, snapshot.SNAT6, snapshot.GroupSources) {
		errs = append(errs, k.s.OpenAddrBeforeOwn(a, addrFlags(snapshot.Owned(a))))
	}
	return errors.Join(errs...)
}

// Own unblocks a prepared Program. lock is the lock of the other process, which no longer uses it.
// After an error calls stay blocked, and Own may be called again.
func (k *Program) Own(lock *os.File) error {
	if err := k.s.Own(lock); err != nil {
		return err
	}
	k.mu.Unlock() // locked by Prepare
	return nil
}

// Discard closes a prepared Program instead of Own.
func (k *Program) Discard() error { return k.s.Close(false) }

// Pause blocks all calls that change something, until Resume.
func (k *Program) Pause() { k.mu.Lock() }

// Resume ends Pause.
func (k *Program) Resume() { k.mu.Unlock() }

// LockFD returns the descriptor of the lock on the pins (xdpprog.Steering.LockFD).
func (k *Program) LockFD() int { return k.s.LockFD() }

// AttachOver implements ports.Program.
func (k *Program) AttachOver(
	ifindex int, name string, hostLink bool, fill func(*xdpprog.Port) error,
) (*xdpprog.Port, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.s.AttachOver(ifindex, name, hostLink, fill)
}

// Load opens or makes the BPF maps. It attaches nothing.
func Load(c *config.Configuration, log *slog.Logger) (*Program, error) {
	s, err := xdpprog.Load(programConfig(c, log))
	if errors.Is(err, xdpprog.ErrInUse) {
		return nil, fmt.Errorf("another sluice runs with bpfFS %s: stop it, or give this one its own bpfFS, "+
			"tuning.hostLinkName and interfaces (%w)", c.BPFFS, err)
	}
	if err != nil {
		return nil, err
	}
	return &Program{s: s}, nil
}

// Replaceable returns why a start with this configuration could not replace the program on an
// interface; nil if the interface has none, or if it is pinned where this configuration looks for
// it.
func Replaceable(c *config.Configuration, ifindex int, name string) error {
	err := xdpprog.Replaceable(pinDir(c), ifindex, name)
	if errors.Is(err, xdpprog.ErrForeign) {
		return fmt.Errorf("interface %s has a program that is not pinned in %s, so a start could not replace it; "+
			"if the running process owns it, give this one the same bpfFS, or end that one with drain.handOver: false "+
			"(%w)", name, pinDir(c), err)
	}
	return err
}

func pinDir(c *config.Configuration) string { return filepath.Join(c.BPFFS, "sluice") }

func programConfig(c *config.Configuration, log *slog.Logger) xdpprog.Config {
	return xdpprog.Config{
		PinDir: pinDir(c), PassAfter: c.Tuning.PassAfter.D(), Logger: log,
		Interfaces: len(c.Interfaces), HostLink: c.HostLink.Enabled(),
	}
}

// Open implements loop.Steering. It adds addresses first, because a frontend's entry has no effect
// without its address.
func (k *Program) Open(set *steer.Set) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var o openResult
	for _, n := range set.Replies.List() {
		o.refused(k.s.OpenReply(xdpprog.NodePort(n)))
	}
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

// openResult collects the entries that do not fit in the kernel program's tables, separately from
// other errors.
type openResult struct {
	set    steer.Set
	full   error // the first of them
	others []error
}

// refused reports whether an entry did not fit.
func (o *openResult) refused(err error) bool {
	if !errors.Is(err, unix.E2BIG) {
		o.others = append(o.others, err)
		return false
	}
	if o.full == nil {
		o.full = err
	}
	return true
}

func (o *openResult) err() error {
	if err := errors.Join(o.others...); err != nil || o.full == nil {
		return errors.Join(err, o.full)
	}
	return &steer.RefusedError{Set: o.set, Err: o.full}
}

// Close implements loop.Steering.
func (k *Program) Close(set *steer.Set) error {
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
	for _, n := range set.Replies.List() {
		errs = append(errs, k.s.CloseReply(xdpprog.NodePort(n)))
	}
	return errors.Join(errs...)
}

// Held implements loop.Steering.
func (k *Program) Held() steer.Set {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held()
}

func (k *Program) held() (set steer.Set) {
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
	replies := make([]steer.NodePort, len(r.Replies))
	for i, n := range r.Replies {
		replies[i] = steer.NodePort(n)
	}
	set.Replies = steer.Ports(replies)
	return set
}

// Replace implements loop.Steering.
func (k *Program) Replace(set *steer.Set) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, err := k.s.Reconcile(Rules(set))
	if !onlyFull(err) {
		return err
	}
	held := k.held()
	return &steer.RefusedError{Set: set.Without(&held), Err: first(err)}
}

// onlyFull reports whether there are errors and all of them are of full tables.
func onlyFull(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !onlyFull(e) })
	}
	return errors.Is(err, unix.E2BIG)
}

// first returns the first of joined errors, of which many may be alike.
func first(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return first(joined.Unwrap()[0])
	}
	return err
}

// SettingsDue reports whether the last SetSettings failed, or net.ipv4.ip_local_port_range has
// changed since. If the range cannot be read, SetSettings would fail: SettingsDue is false.
func (k *Program) SettingsDue() bool {
	now, err := config.ReadEphemeral()
	k.mu.Lock()
	defer k.mu.Unlock()
	return err == nil && now != k.local
}

// SetSettings writes the parameters of the programs.
func (k *Program) SetSettings(c *config.Configuration, host *hostlink.HostLink) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.local = config.PortRange{}
	local, err := config.ReadEphemeral()
	if err != nil {
		return err
	}
	s := xdpprog.Settings{
		LocalFirst: local.First, LocalCount: uint16(min(local.Count(), math.MaxUint16)),
		SNATFirst: c.SNAT.Ports.First, SNATCount: uint16(c.SNAT.Ports.Count()),
		Unserved: c.UnservedVIPPort != config.UnservedPass, PassAfter: c.Tuning.PassAfter.D(),
	}
	if host != nil {
		s.HostLinkIndex = host.KernelIndex
	}
	if err := k.s.SetSettings(s); err != nil {
		return err
	}
	k.local = local
	return nil
}

// Attach implements ports.Program.
func (k *Program) Attach(ifindex int, name string, mode xdpprog.AttachMode) (*xdpprog.Port, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.s.Attach(ifindex, name, mode)
}

// AttachHostLink implements ports.Program.
func (k *Program) AttachHostLink(ifindex int, name string) (*xdpprog.Port, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.s.AttachHostLink(ifindex, name)
}

// AttachEgress implements ports.Program.
func (k *Program) AttachEgress(ifindex int, name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.s.AttachEgress(ifindex, name)
}

// DetachOthers detaches a predecessor's programs from devices that this process does not use: from
// all but the configured indexes.
func (k *Program) DetachOthers(configured []int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.s.DetachOthers(configured...)
}

// Counters returns the program's counters. It only asks the kernel, so it takes no lock.
func (k *Program) Counters() (xdpprog.Counters, error) { return k.s.Counters() }

// Arrivals counts the packets that have arrived, by CPU.
func (k *Program) Arrivals() ([]uint64, error) { return k.s.Arrivals() }

// Steers returns the rule by which the kernel's maps now send a packet to a worker.
func (k *Program) Steers(t *header.Tuple) (xdpprog.Match, error) { return k.s.Steers(t) }

// SetDenied replaces the list of denied clients.
func (k *Program) SetDenied(list []xdpprog.Denial) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.s.SetDenied(list)
}

// Denied returns the number of dropped packets by denied prefix.
func (k *Program) Denied() (map[netip.Prefix]uint64, error) { return k.s.Denied() }

// Heartbeat stores in the program a time of CLOCK_BOOTTIME at which the workers made progress.
func (k *Program) Heartbeat(bootNanos uint64) error { return k.s.Heartbeat(bootNanos) }

// Release detaches and unpins everything, or leaves it to a successor.
func (k *Program) Release(detach bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.s.Close(detach)
}

// Rules returns a whole set in the terms of xdpprog.
func Rules(set *steer.Set) xdpprog.Rules {
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
	for _, n := range set.Replies.List() {
		r.Replies = append(r.Replies, xdpprog.NodePort(n))
	}
	return r
}

// sameFlags maps the flags of an address between control and xdpprog.
var sameFlags = [...]struct {
	services services.AddrFlags
	kernel   xdpprog.AddrFlags
}{{services.AddrVIP, xdpprog.AddrVIP}, {services.AddrNode, xdpprog.AddrNode}, {services.AddrSNAT, xdpprog.AddrSNAT},
	{services.AddrLocal, xdpprog.AddrLocal}}

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
