// Package doctor examines a host. It reports problems that would keep a gateway from working, each
// with its remedy.
//
//	Read(host) ──▶ Facts ──▶ Examine (pure) ──▶ []Finding
//
// Reading changes nothing and does not need the daemon. If a daemon runs, the modes and queues that
// it reports take precedence over those that doctor would expect. A fact that cannot be read,
// because a capability is missing or the kernel is old, is a finding, too.
package doctor

import (
	"net/netip"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/gateway/seed"
	"sluice.dev/sluice/host/nic/ethtool"
	"sluice.dev/sluice/host/nic/irq"
	"sluice.dev/sluice/host/placement"
	"sluice.dev/sluice/internal/trusted"
	"sluice.dev/sluice/serve/status"
)

// Level is the severity of a finding.
type Level string

// The levels: Fail prevents the gateway from working, Warn may do so.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Finding is the result of one check.
type Finding struct {
	Check   string `json:"check"`
	Subject string `json:"subject,omitempty"` // interface, port, file
	Level   Level  `json:"level"`
	Found   string `json:"found"`
	Do      string `json:"do,omitempty"` // remedy; empty if Level is OK
}

// Facts are the facts read from a host.
type Facts struct {
	Config *config.Configuration // nil if there is none
	// ConfigFile is the file of Config; ConfigError is why Config is nil.
	ConfigFile  string
	ConfigError error
	Running     *status.StatusView // nil if no daemon answers
	RunningErr  error
	Workers     []status.WorkerView // of the running daemon

	// ConfigErrors are the fields of Config that do not fit this host. StartError is why the daemon
	// would not start on its interfaces. Both come from the daemon's own checks.
	ConfigErrors config.Errors
	StartError   error

	Kernel    string // as uname -r prints it
	AFXDP     error  // error of making an AF_XDP socket
	CapsOf    string // process that has Caps
	Caps      uint64 // effective
	BPFFS     bool   // mounted at the configured path
	Memlock   uint64 // soft limit in bytes
	HugePages int    // reserved, of the default size
	CPUs      int

	Host config.Host
	// Machine has the facts for placing workers that Host and Interfaces do not have.
	Machine    placement.Machine
	Sysctls    map[string]string // the readable ones, such as net.ipv4.ip_forward
	Listeners  []Listener
	Addresses  []netip.Addr             // of this network namespace
	PortsInUse []status.SourcePortsView // of the running daemon
	PortsError error                    // of reading PortsInUse
	Interfaces []Interface
	Manifests  bool  // the directory exists
	API        error // why the API server's address and credentials cannot be read; nil if none is configured
	StateDisk  bool  // the state directory is on a disk, or would be
	RunDisk    bool  // /run is on a disk
	// Tunnel has the nodes of Services with direct return; nil without a daemon.
	Tunnel []TunnelNode
	// ManifestsRefused and StateRefused are why the daemon does not use these directories: users
	// other than their owner may write them. nil: the daemon uses the directory, or makes the one
	// for state.
	ManifestsRefused, StateRefused *trusted.Refusal

	// Seed is the seed of backend selection; SeedErr is why it cannot be read.
	Seed    seed.Seed
	SeedErr error

	OtherNetNS int // the daemon's pid if it is in another network namespace than this command; else 0
	Socket     SocketState
	// ReadersErr is why users of readers.group cannot open their socket; nil if there is none.
	ReadersErr error
}

// Listener is a socket of this network namespace that receives packets or connections.
type Listener struct {
	Protocol string // tcp, udp
	Addr     netip.AddrPort
}

// SocketState is the state of the status socket's path.
type SocketState string

// The states of the status socket.
const (
	SocketAbsent   SocketState = "absent"
	SocketAnswers  SocketState = "answers"
	SocketStale    SocketState = "stale"
	SocketHidden   SocketState = "hidden"   // this command may not open it
	SocketObstacle SocketState = "obstacle" // a file that is no socket, or a socket on which no process answers
)

// Interface is the state of one configured interface in the kernel.
type Interface struct {
	Name   string
	Err    error // it does not exist or cannot be read
	Up     bool
	Kind   string // veth, bond, vlan, ...; device for hardware
	Driver string
	MTU    int
	Queues int // that can both receive and transmit
	// MaxQueues is the greatest Queues that the driver supports; 0 if it does not report it.
	MaxQueues int
	// RSSQueues is how many queues the kernel spreads packets over.
	RSSQueues int
	Features  map[string]bool // ethtool -k, by the kernel's names
	// XDPFeatures is the device's netdev_xdp_act bits, if XDPKnown.
	XDPFeatures uint64
	XDPKnown    bool
	Program     string // the attached XDP program's name, or its ID if the name cannot be read
	// ProgramHidden: this command may not read the program.
	ProgramHidden bool
	Master        string // kind of the device that it is enslaved to
	VLANs         []string
	// PeerFeatures are the Features of a veth's other end, if that is in this namespace.
	PeerFeatures map[string]bool
	// FlowHash has the fields by which packets are spread, for the kinds of flows that the driver
	// reports.
	FlowHash map[ethtool.Flow]ethtool.HashFields
	Rings    ethtool.Rings // zero if the driver does not report them
	// Interrupts are the interrupts that the driver requested; none if they cannot be read.
	Interrupts []irq.Interrupt
	// NoAccessPlatform: a virtio device without VIRTIO_F_ACCESS_PLATFORM (Virtual I/O Device 1.1,
	// section 6).
	NoAccessPlatform bool
	Below            []Lower // devices under this one, such as a VLAN's
}

// Lower is a device under a configured one; it receives the packets first.
type Lower struct {
	Name string
	GRO  bool
}

// Examine returns the findings, in the order in which an operator should handle them.
func Examine(f *Facts) []Finding {
	e := examination{f: f, daemon: f.Running}
	e.kernel()
	e.privileges()
	e.configuration()
	if f.Config == nil {
		return e.findings
	}
	e.memory()
	e.forwarding()
	e.tunnel()
	e.ports()
	e.places()
	e.interfaces()
	return e.findings
}

// ExamineInterfaces returns the findings about the configured interfaces only, for a daemon that
// starts with the configuration. It ignores a running daemon, which may have another configuration.
func ExamineInterfaces(f *Facts) []Finding {
	e := examination{f: f}
	e.interfaces()
	return e.findings
}

func (e *examination) interfaces() {
	for i := range e.f.Interfaces {
		e.device(&e.f.Interfaces[i])
	}
	e.workers()
	e.interrupts()
	e.checksums()
	e.startError()
}

// Failed reports whether a finding is a Fail.
func Failed(list []Finding) bool {
	for i := range list {
		if list[i].Level == Fail {
			return true
		}
	}
	return false
}

// examination collects findings.
type examination struct {
	f *Facts
	// daemon is the running daemon, if its frames and modes take precedence over the expected ones;
	// else nil.
	daemon   *status.StatusView
	findings []Finding
}

func (e *examination) ok(check, subject, found string) {
	e.findings = append(e.findings, Finding{Check: check, Subject: subject, Level: OK, Found: found})
}

func (e *examination) add(level Level, check, subject, found, do string) {
	e.findings = append(e.findings, Finding{Check: check, Subject: subject, Level: level, Found: found, Do: do})
}
