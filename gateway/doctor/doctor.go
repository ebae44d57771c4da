// Package doctor examines a host, and reports what would keep a gateway from working and the
// remedy.
//
//	Read(host) ──▶ Facts ──▶ Examine (pure) ──▶ []Finding
//
// Reading never changes anything and never needs the daemon. If a daemon runs, its own view of
// modes and queues takes precedence over a guess. A fact that cannot be read, for lack of a
// capability or on an old kernel, is a finding, too.
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

// The levels: Fail keeps the gateway from working right, Warn may.
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
	Do      string `json:"do,omitempty"` // empty where Level is OK
}

// Facts are the facts read from a host.
type Facts struct {
	Config *config.Configuration // nil if there is none to check against
	// ConfigFile is the file of Config, ConfigError why Config is nil.
	ConfigFile  string
	ConfigError error
	Running     *status.StatusView // nil if no daemon answers
	RunningErr  error
	Workers     []status.WorkerView // of the running daemon

	// ConfigErrors are the fields of Config that do not fit this host, and StartError is why the
	// daemon would not start on its interfaces, both by the daemon's own rules.
	ConfigErrors config.Errors
	StartError   error

	Kernel    string // as uname -r prints it
	AFXDP     error  // of making an AF_XDP socket
	CapsOf    string // whose Caps these are
	Caps      uint64 // effective
	BPFFS     bool   // mounted where the configuration says
	Memlock   uint64 // soft limit in bytes
	HugePages int    // reserved, of the default size
	CPUs      int

	Host config.Host
	// Machine has what Host and Interfaces do not have of what workers are placed by.
	Machine    placement.Machine
	Sysctls    map[string]string // those that could be read, such as net.ipv4.ip_forward
	Listeners  []Listener
	Addresses  []netip.Addr             // of this network namespace
	PortsInUse []status.SourcePortsView // of the running daemon
	PortsError error                    // of reading PortsInUse
	Interfaces []Interface
	Manifests  bool  // the directory is there
	API        error // of finding what the API server is asked with; nil where none is asked
	StateDisk  bool  // the state directory is on a disk, or will be
	RunDisk    bool  // so is /run
	// ManifestsRefused and StateRefused are why the daemon does not use these directories: others
	// may write them. nil: it does, or makes the one for state.
	ManifestsRefused, StateRefused *trusted.Refusal

	// Seed is the seed of backend selection, and SeedErr why it is not known.
	Seed    seed.Seed
	SeedErr error

	OtherNetNS int // the daemon's pid, if it is in another network namespace than this command; else 0
	Socket     SocketState
}

// Listener is a socket of this network namespace that waits for packets.
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
	SocketObstacle SocketState = "obstacle" // something that is no socket, or does not answer
)

// Interface is one configured interface as the kernel has it.
type Interface struct {
	Name   string
	Err    error // it is not there, or cannot be read
	Up     bool
	Kind   string // veth, bond, vlan, ...; device for hardware
	Driver string
	MTU    int
	Queues int // that can both receive and transmit
	// MaxQueues is how many of those the driver can have; 0 where it does not tell.
	MaxQueues int
	// RSSQueues is how many queues the kernel spreads packets over.
	RSSQueues int
	Features  map[string]bool // ethtool -k, by the kernel's names
	// XDPFeatures is the device's netdev_xdp_act bits, if XDPKnown.
	XDPFeatures uint64
	XDPKnown    bool
	Program     string // of XDP, attached now: its name, or its id where the name cannot be read
	// ProgramHidden: this command may not read the program.
	ProgramHidden bool
	Master        string // kind of the device it is enslaved to
	VLANs         []string
	// PeerFeatures is of the other end of a veth, if that is in this namespace.
	PeerFeatures map[string]bool
	// FlowHash is by which fields packets are spread, of the kinds that the driver tells about.
	FlowHash map[ethtool.Flow]ethtool.HashFields
	Rings    ethtool.Rings // zero where the driver does not tell
	// Interrupts are those that the driver requested; none where they cannot be read.
	Interrupts []irq.Interrupt
	// NoAccessPlatform: a virtio device without VIRTIO_F_ACCESS_PLATFORM (Virtual I/O Device 1.1,
	// section 6).
	NoAccessPlatform bool
	Below            []Lower // devices that this one lies on, such as a VLAN's
}

// Lower is a device under a configured one, which has the packets first.
type Lower struct {
	Name string
	GRO  bool
}

// Examine returns the findings, in the order in which an operator should act on them.
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
	e.ports()
	e.places()
	e.interfaces()
	return e.findings
}

// ExamineInterfaces returns the findings about the configured interfaces only, as for a daemon that
// starts with the configuration. A running daemon, which may have another one, is ignored.
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
	// daemon is the running daemon, if its frames and modes take precedence over a guess; else nil.
	daemon   *status.StatusView
	findings []Finding
}

func (e *examination) ok(check, subject, found string) {
	e.findings = append(e.findings, Finding{Check: check, Subject: subject, Level: OK, Found: found})
}

func (e *examination) add(level Level, check, subject, found, do string) {
	e.findings = append(e.findings, Finding{Check: check, Subject: subject, Level: level, Found: found, Do: do})
}
