// Package xdpprog is the kernel side of Sluice: small programs that choose which
// packets user space owns, the maps that tell them, and the loader that attaches
// them and finds them again after a restart.
//
//	NIC in ──► steer ──┬─ a rule matches ──► xsks[queue] ──► worker
//	                   │   │                    └─ no socket: heartbeat young: drop
//	                   │   │                                  old or never: kernel
//	                   │   │                                  queue never served: kernel
//	                   │   └─ another's MAC address, or a VLAN without a device: kernel
//	                   └─ no rule, any doubt ─► kernel, untouched
//	NIC out ─► egress ─── source is kept ─────► host link ──► host_link ──► worker
//
// What matches is in maps shared by all interfaces and changed in place: Frontends,
// node ports, addresses with their flags, kept sources, settings. What an
// interface has of its own is its program instance, its sockets (an XSKMAP takes only
// sockets of the receiving device and queue), how many queues get one, and for which MAC
// addresses and VLANs frames are this node's.
//
// Everything attached is a bpf_link and, where Config.PinDir is set, pinned with the
// shared maps on a bpffs. A daemon that dies leaves a working kernel side; its
// successor takes the maps over, reconciles them, and replaces the programs
// atomically: an interface is never without one. Steering.Close(true) leaves nothing.
// The pin directory is locked (flock(2)) while a Steering works by it: there is one
// writer, and a second gateway needs a directory of its own.
//
// The order that keeps every packet in good hands: Load, SetSettings, Reconcile,
// Attach, SetQueues, SetDestinations, SetSocket, Heartbeat; then DetachOthers.
package xdpprog

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -type endpoint -type addr_flags -type shortcut -type config -type counts -type mac_sets -cflags "-mcpu=v3 -Wall -Wextra -Werror" steer steer.bpf.c

// Config configures a Steering. Zero fields get the defaults below.
type Config struct {
	// PinDir is a directory on a bpffs, made if it is missing. Empty: nothing is
	// pinned, and everything ends with the process.
	PinDir string
	// PassAfter is the heartbeat age from which service packets that find no
	// socket pass to the kernel instead of being dropped.
	PassAfter time.Duration
	// Sizes of the tables. The kernel reserves about 16 bytes per entry at Load, and takes
	// some 80 more for each that is used.
	MaxFrontends, MaxSources, MaxAddrs uint32
	// Interfaces and HostLink say how many programs to load beside each other at Load. More are
	// loaded when they are attached.
	Interfaces int
	HostLink   bool
	// Logger gets what was attached, taken over and replaced. Nil: nothing is logged.
	Logger *slog.Logger
}

// What zero fields of Config mean.
const (
	DefaultPassAfter  = 30 * time.Second
	DefaultMaxEntries = 1 << 18
)

func (c Config) withDefaults() Config {
	if c.PassAfter == 0 {
		c.PassAfter = DefaultPassAfter
	}
	for _, n := range []*uint32{&c.MaxFrontends, &c.MaxSources, &c.MaxAddrs} {
		if *n == 0 {
			*n = DefaultMaxEntries
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Steering is the kernel side of one gateway. Heartbeat, Counters and Port.Check
// may be called from any goroutine; all else belongs to one, the control loop.
type Steering struct {
	config    Config
	spec      *ebpf.CollectionSpec
	lock      *os.File             // on PinDir; nil without
	maps      map[string]*ebpf.Map // the shared ones
	rules     mirror
	shortcuts shortcuts

	prepared     []*prepared   // instances that no interface has yet
	egressLoaded *ebpf.Program // once there is an interface that has it

	mu     sync.Mutex            // guards ports and egress, for Check
	ports  map[int]*Port         // by ifindex
	egress map[int]*egressFilter // by ifindex
}

// Load makes the maps, or takes them over from a predecessor that left them in
// PinDir. A pinned map of another shape or size is replaced by an empty one. It
// attaches nothing. What is missing, a capability or a kernel feature, is named in
// the error. PinDir belongs to the Steering until Close; a second Load of the same
// one is ErrInUse.
func Load(c Config) (*Steering, error) {
	s, err := newSteering(c)
	if err != nil {
		return nil, err
	}
	if c.PinDir != "" {
		if s.lock, err = lockPins(c.PinDir); err != nil {
			return nil, err
		}
	}
	if err := s.start(); err != nil {
		return nil, errors.Join(err, removeUnusedPins(c.PinDir), s.Close(false))
	}
	return s, nil
}

// ErrMisfit is returned by Prepare if the maps of the process at work are not those of this
// program, whose own maps and programs the kernel takes: a start would replace the maps.
var ErrMisfit = errors.New("the BPF maps are another version's")

// Prepare opens the maps of another process that is at work, and loads the programs, which is most
// of the time that a start takes. It changes nothing. It returns an error if the kernel refuses any
// program that a start cannot do without. Own must follow before anything else but Counters and
// Arrivals, once the other process has stopped.
func Prepare(c Config) (*Steering, error) {
	s, err := newSteering(c)
	if err != nil {
		return nil, err
	}
	if err := s.prepareBeside(); err != nil {
		return nil, errors.Join(err, s.Close(false))
	}
	return s, nil
}

// Own makes a prepared Steering the one that works by the maps. lock is the other process's lock on
// the pin directory (LockFD), which is the Steering's from then on.
func (s *Steering) Own(lock *os.File) error {
	s.lock = lock
	return s.takeOver()
}

// LockFD is the descriptor of the lock on the pin directory, for another process; -1 if there is
// none. It stays the Steering's.
func (s *Steering) LockFD() int {
	if s.lock == nil {
		return -1
	}
	return int(s.lock.Fd())
}

// newSteering returns a Steering without maps.
func newSteering(c Config) (*Steering, error) {
	c = c.withDefaults()
	spec, err := loadSteer()
	if err != nil {
		return nil, fmt.Errorf("read the embedded BPF object: %w", err)
	}
	for m, entries := range map[string]uint32{
		steerMapFrontends: c.MaxFrontends, steerMapKeepSources: c.MaxSources, steerMapAddrs: c.MaxAddrs,
	} {
		spec.Maps[m].MaxEntries = entries
		spec.Maps[m].Flags |= unix.BPF_F_NO_PREALLOC
	}
	return &Steering{
		config: c, spec: spec,
		maps: map[string]*ebpf.Map{}, ports: map[int]*Port{}, egress: map[int]*egressFilter{},
	}, nil
}

func (s *Steering) start() (err error) {
	if err := s.openMaps(); err != nil {
		return err
	}
	if err := s.prepare(); err != nil {
		return err
	}
	return s.takeOver()
}

// takeOver continues with what the maps hold.
func (s *Steering) takeOver() (err error) {
	if err := s.rules.read(s.maps); err != nil {
		return err
	}
	if s.shortcuts, err = mapShortcuts(s.maps[steerMapShortcuts]); err != nil {
		return err
	}
	s.reconcileShortcuts() // a predecessor of another version may not have known them
	return s.takeOverSettings()
}

// instanceSpec is what load needs for a program.
func (s *Steering) instanceSpec(program string) *ebpf.CollectionSpec {
	spec := s.spec.Copy()
	spec.Programs = map[string]*ebpf.ProgramSpec{program: spec.Programs[program]}
	return spec
}

// load loads one program with the shared maps and a port's maps of its own.
func (s *Steering) load(program string, spec *ebpf.CollectionSpec) (*ebpf.Collection, error) {
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: s.maps})
	if err != nil {
		return nil, fmt.Errorf("load BPF program %q: %w", program, explain(err))
	}
	return c, nil
}

// Counters are the programs' own, of all CPUs and interfaces since the maps were made.
type Counters struct {
	Steered          uint64 // to a socket
	Passed           uint64 // no rule matched: the kernel's
	MissedDropped    uint64 // a rule matched, no socket, heartbeat young
	MissedPassed     uint64 // a rule matched, no socket, heartbeat old or a queue beyond Port.SetQueues
	EgressRedirected uint64 // sent by the kernel, caught for the host link
	ForeignPassed    uint64 // a rule matched, and the frame is not this node's: Port.SetDestinations
	SentBackDropped  uint64 // forwarded by the kernel to an address of ours that the node does not have
}

func (s *Steering) countersByCPU() (counts []steerCounts, err error) {
	if err := s.maps[steerMapCounters].Lookup(uint32(0), &counts); err != nil {
		return nil, fmt.Errorf("read BPF counters: %w", err)
	}
	return counts, nil
}

// Arrivals counts, by CPU, the packets that the programs have seen on interfaces.
func (s *Steering) Arrivals() ([]uint64, error) {
	perCPU, err := s.countersByCPU()
	if err != nil {
		return nil, err
	}
	arrived := make([]uint64, len(perCPU))
	for cpu, c := range perCPU {
		arrived[cpu] = c.Steered + c.Passed + c.MissedDropped + c.MissedPassed + c.ForeignPassed
	}
	return arrived, nil
}

// Counters sums over the CPUs.
func (s *Steering) Counters() (Counters, error) {
	perCPU, err := s.countersByCPU()
	if err != nil {
		return Counters{}, err
	}
	var sum Counters
	for _, c := range perCPU {
		sum.Steered += c.Steered
		sum.Passed += c.Passed
		sum.MissedDropped += c.MissedDropped
		sum.MissedPassed += c.MissedPassed
		sum.EgressRedirected += c.EgressRedirected
		sum.ForeignPassed += c.ForeignPassed
		sum.SentBackDropped += c.SentBackDropped
	}
	return sum, nil
}

// Settings are the numbers the programs go by.
type Settings struct {
	// SNATFirst and SNATCount are the port range of replies to an address with AddrSNAT.
	SNATFirst, SNATCount uint16
	// HostLinkIndex is the kernel-side end of the host link; zero turns the egress
	// programs off.
	HostLinkIndex int
	// LocalFirst and LocalCount are the ports that the node's own connections have
	// (net.ipv4.ip_local_port_range). A node port in it gets only packets that are not of a TCP or
	// UDP socket of the node.
	LocalFirst, LocalCount uint16
	// Unserved steers every packet to an AddrVIP or AddrSNAT that the node does not have, of any
	// protocol. Where no socket takes it and the kernel forwards it, the egress program drops it
	// (SentBackDropped).
	Unserved bool
	// PassAfter as in Config; zero means Config's.
	PassAfter time.Duration
}

// SetSettings replaces the settings.
func (s *Steering) SetSettings(v Settings) error {
	raw := steerConfig{
		PassAfterNs: uint64(v.PassAfter), HostLink: uint32(v.HostLinkIndex),
		SnatFirst: v.SNATFirst, SnatCount: v.SNATCount, LocalFirst: v.LocalFirst, LocalCount: v.LocalCount,
		KeptReplies: flag(s.rules.replyCount > 0),
		Unserved:    flag(v.Unserved),
	}
	if v.PassAfter == 0 {
		raw.PassAfterNs = uint64(s.config.PassAfter)
	}
	return s.putSettings(&raw)
}

func flag(on bool) uint16 {
	if on {
		return 1
	}
	return 0
}

// takeOverSettings keeps a predecessor's settings until SetSettings replaces them.
func (s *Steering) takeOverSettings() error {
	raw, err := s.readSettings()
	if err != nil {
		return err
	}
	raw.PassAfterNs = uint64(s.config.PassAfter)
	return s.putSettings(&raw)
}

func (s *Steering) readSettings() (raw steerConfig, err error) {
	if err = s.maps[steerMapSettings].Lookup(uint32(0), &raw); err != nil {
		err = fmt.Errorf("read BPF settings: %w", err)
	}
	return raw, err
}

func (s *Steering) putSettings(raw *steerConfig) error {
	if err := s.maps[steerMapSettings].Put(uint32(0), raw); err != nil {
		return fmt.Errorf("write BPF settings: %w", err)
	}
	return nil
}

// Heartbeat records that the daemon was alive at a time of CLOCK_BOOTTIME. Zero records
// that it has ended: matching packets without a socket then pass at once.
func (s *Steering) Heartbeat(bootNanos uint64) error {
	if err := s.maps[steerMapHeartbeat].Put(uint32(0), bootNanos); err != nil {
		return fmt.Errorf("write BPF heartbeat: %w", err)
	}
	return nil
}

// Close ends the Steering. With detach, programs and pins are removed and the
// node is as before; without, everything pinned stays at work for a successor.
func (s *Steering) Close(detach bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, p := range s.ports {
		errs = append(errs, p.release(detach))
	}
	for _, e := range s.egress {
		errs = append(errs, e.release(detach))
	}
	clear(s.ports)
	clear(s.egress)
	if detach && s.config.PinDir != "" {
		errs = append(errs, s.detachStale(nil), removePins(s.config.PinDir))
	}
	s.closePrepared()
	for _, m := range s.maps {
		errs = append(errs, m.Close())
	}
	if s.egressLoaded != nil {
		errs = append(errs, s.egressLoaded.Close())
		s.egressLoaded = nil
	}
	if s.lock != nil { // last: all of this was still ours to remove
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// linkPin is where a link is pinned; empty if nothing is.
func (s *Steering) linkPin(hook string, ifindex int) string {
	if s.config.PinDir == "" {
		return ""
	}
	return linkPin(s.config.PinDir, hook, ifindex)
}

func linkPin(pinDir, hook string, ifindex int) string {
	return filepath.Join(pinDir, linkDir, fmt.Sprintf("%s_%d", hook, ifindex))
}
