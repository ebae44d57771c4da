// Package xdpprog is the kernel side of Sluice: small programs that select the packets for user
// space, the maps with their rules, and the loader, which attaches the programs and finds them
// again after a restart.
//
//	NIC in ──► steer ──┬─ a rule matches ──► xsks[queue] ──► worker
//	                   │   │                    └─ no socket: heartbeat young: drop
//	                   │   │                                  old or never: kernel
//	                   │   │                                  queue never served: kernel
//	                   │   ├─ another's MAC address, or a VLAN without a device: kernel
//	                   │   └─ its client is denied: drop
//	                   └─ no rule, any doubt ─► kernel, untouched
//	NIC out ─► egress ─── source is kept ─────► host link ──► host_link ──► worker
//
// The rules are in maps that all interfaces share and that are changed in place: frontends, node
// ports, addresses with their flags, kept sources, denied clients, settings. Each interface has its
// own program instance, its own sockets (an XSKMAP accepts only sockets of the receiving device and
// queue), number of queues with a socket, and MAC addresses and VLANs of frames for this node.
//
// Every attachment is a bpf_link. If Config.PinDir is set, the links and the shared maps are pinned
// on a bpffs. A daemon that dies leaves a working kernel side; its successor opens the maps,
// reconciles them, and replaces the programs atomically: an interface is never without one.
// Steering.Close(true) removes everything. The pin directory is locked (flock(2)) while a Steering
// uses it: there is one writer, and a second gateway needs its own directory.
//
// Call the functions in this order, so that no packet is misdirected: Load, SetSettings, Reconcile,
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

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -type endpoint -type addr_flags -type shortcut -type config -type counts -type mac_sets -type prefix -type denial -cflags "-mcpu=v3 -Wall -Wextra -Werror" steer steer.bpf.c

// Config configures a Steering. Zero fields get the defaults below.
type Config struct {
	// PinDir is a directory on a bpffs, made if it is missing. If it is empty, nothing is pinned,
	// and everything ends with the process.
	PinDir string
	// PassAfter is the heartbeat age from which service packets that find no socket pass to the
	// kernel; before it they are dropped.
	PassAfter time.Duration
	// Sizes of the tables. The kernel reserves about 16 bytes per entry at Load, and about 80 more
	// for each entry that is used.
	MaxFrontends, MaxSources, MaxAddrs uint32
	// Interfaces and HostLink determine how many programs Load loads concurrently. Further programs
	// are loaded when they are attached.
	Interfaces int
	HostLink   bool
	// Logger receives messages about attached, reused and replaced programs and maps. If it is nil,
	// nothing is logged.
	Logger *slog.Logger
}

// Defaults for zero fields of Config.
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

// Steering is the kernel side of one gateway. Heartbeat, Counters and Port.Check may be called from
// any goroutine; only the control loop may call the other methods.
type Steering struct {
	config    Config
	spec      *ebpf.CollectionSpec
	lock      *os.File             // on PinDir; nil without PinDir
	maps      map[string]*ebpf.Map // the shared maps
	rules     mirror
	shortcuts shortcuts
	denies    bool // map denied has entries

	prepared     []*prepared   // instances that no interface uses yet
	egressLoaded *ebpf.Program // nil until an interface needs it

	mu     sync.Mutex            // guards ports and egress, for Check
	ports  map[int]*Port         // by ifindex
	egress map[int]*egressFilter // by ifindex
}

// Load makes the maps, or opens those that a predecessor left in PinDir. It replaces a pinned map
// of another type or size by an empty one. It attaches nothing. Its error names a missing
// capability or kernel feature. It locks PinDir until Close; a second Load of the same directory
// fails with ErrInUse.
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

// ErrMisfit is returned by Prepare if the maps of the running process do not fit this program, but
// the kernel accepts this program's own maps and programs: then a start would replace the maps.
var ErrMisfit = errors.New("the BPF maps are another version's")

// Prepare opens the maps of another process that is running, and loads the programs, which takes
// most of the time of a start. It changes nothing. It returns an error if the kernel rejects a
// program that a start needs. Until the other process has stopped and Own was called, only Counters
// and Arrivals may be called.
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

// Own makes a prepared Steering the owner of the maps. lock is the other process's lock on the pin
// directory (LockFD), which the Steering owns from then on.
func (s *Steering) Own(lock *os.File) error {
	s.lock = lock
	return s.takeOver()
}

// LockFD returns the descriptor of the lock on the pin directory, to pass to another process, or -1
// if there is none. The Steering still owns it.
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

// takeOver reads the contents of the maps and continues with them.
func (s *Steering) takeOver() (err error) {
	if err := s.rules.read(s.maps); err != nil {
		return err
	}
	if s.shortcuts, err = mapShortcuts(s.maps[steerMapShortcuts]); err != nil {
		return err
	}
	s.reconcileShortcuts() // a predecessor of another version may have had no shortcuts
	return s.takeOverSettings()
}

// instanceSpec returns the specification of one program, for load.
func (s *Steering) instanceSpec(program string) *ebpf.CollectionSpec {
	spec := s.spec.Copy()
	spec.Programs = map[string]*ebpf.ProgramSpec{program: spec.Programs[program]}
	return spec
}

// load loads one program with the shared maps and its own per-port maps.
func (s *Steering) load(program string, spec *ebpf.CollectionSpec) (*ebpf.Collection, error) {
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: s.maps})
	if err != nil {
		return nil, fmt.Errorf("load BPF program %q: %w", program, explain(err))
	}
	return c, nil
}

// Counters are the programs' counters, summed over all CPUs and interfaces since the maps were
// made.
type Counters struct {
	Steered          uint64 // to a socket
	Passed           uint64 // no rule matched: passed to the kernel
	MissedDropped    uint64 // a rule matched, no socket, heartbeat young
	MissedPassed     uint64 // a rule matched, no socket, heartbeat old or a queue beyond Port.SetQueues
	EgressRedirected uint64 // sent by the kernel, redirected to the host link
	ForeignPassed    uint64 // a rule matched, but the frame is not for this node: Port.SetDestinations
	SentBackDropped  uint64 // forwarded by the kernel to an address of the gateway that the node does not have
	DeniedDropped    uint64 // a rule matched, and the list has the client: SetDenied
}

func (s *Steering) countersByCPU() (counts []steerCounts, err error) {
	if err := s.maps[steerMapCounters].Lookup(uint32(0), &counts); err != nil {
		return nil, fmt.Errorf("read BPF counters: %w", err)
	}
	return counts, nil
}

// Arrivals returns, by CPU, the number of packets that the programs have received on interfaces.
func (s *Steering) Arrivals() ([]uint64, error) {
	perCPU, err := s.countersByCPU()
	if err != nil {
		return nil, err
	}
	arrived := make([]uint64, len(perCPU))
	for cpu, c := range perCPU {
		arrived[cpu] = c.Steered + c.Passed + c.MissedDropped + c.MissedPassed + c.ForeignPassed +
			c.DeniedDropped
	}
	return arrived, nil
}

// Counters returns the sums over the CPUs.
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
		sum.DeniedDropped += c.DeniedDropped
	}
	return sum, nil
}

// Settings are the numeric settings of the programs.
type Settings struct {
	// SNATFirst and SNATCount are the port range of replies to an address with AddrSNAT.
	SNATFirst, SNATCount uint16
	// HostLinkIndex is the ifindex of the kernel-side end of the host link; zero disables the
	// egress programs.
	HostLinkIndex int
	// LocalFirst and LocalCount are the range of ports of the node's own connections
	// (net.ipv4.ip_local_port_range). A node port in this range gets only packets that do not
	// belong to a TCP or UDP socket of the node.
	LocalFirst, LocalCount uint16
	// Unserved steers every packet, of any protocol, to an AddrVIP that the node does not have, as
	// every packet to an AddrSNAT that is no AddrVIP is steered in any case. If no socket receives
	// the packet and the kernel forwards it, the egress program drops it (SentBackDropped).
	Unserved bool
	// PassAfter is as in Config; zero means Config's value.
	PassAfter time.Duration
}

// SetSettings replaces the settings.
func (s *Steering) SetSettings(v Settings) error {
	raw := steerConfig{
		PassAfterNs: uint64(v.PassAfter), HostLink: uint32(v.HostLinkIndex),
		SnatFirst: v.SNATFirst, SnatCount: v.SNATCount, LocalFirst: v.LocalFirst, LocalCount: v.LocalCount,
		KeptReplies: flag(s.rules.replyCount > 0),
		Unserved:    flag(v.Unserved),
		Deny:        uint32(flag(s.denies)),
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
	s.denies = raw.Deny != 0
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

// Heartbeat records that the daemon was alive at bootNanos, a time of CLOCK_BOOTTIME in
// nanoseconds. Zero records that the daemon has ended: matching packets without a socket then pass
// at once.
func (s *Steering) Heartbeat(bootNanos uint64) error {
	if err := s.maps[steerMapHeartbeat].Put(uint32(0), bootNanos); err != nil {
		return fmt.Errorf("write BPF heartbeat: %w", err)
	}
	return nil
}

// Close ends the Steering. If detach is set, it removes programs and pins, and the node is as
// before; otherwise all pinned programs and maps stay in use for a successor.
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
	if s.lock != nil { // last, because the lock protects all of the above
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// linkPin returns the path of a link's pin, or "" if nothing is pinned.
func (s *Steering) linkPin(hook string, ifindex int) string {
	if s.config.PinDir == "" {
		return ""
	}
	return linkPin(s.config.PinDir, hook, ifindex)
}

func linkPin(pinDir, hook string, ifindex int) string {
	return filepath.Join(pinDir, linkDir, fmt.Sprintf("%s_%d", hook, ifindex))
}
