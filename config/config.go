// Package config is the gateway's configuration file: one strict YAML (or JSON)
// document of kind GatewayConfiguration.
//
//	//	file ──decode──▶ Configuration ──Validate──▶ the daemon
//	          ▲                                       │
//	     Default()                             Diff(next) at reload
//
// Three rules hold. An unknown field is an error, so a misspelt field never silently keeps its
// default. All problems are reported at once, each with its line, its field and a remedy. Default
// returns all defaults, and `sluice config defaults` prints them; there are no others.
//
// A Configuration is a plain value. It does not change after Load; a reload makes a new one.
package config

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/internal/nodename"
)

// APIVersion and Kind are the first fields of a file.
const (
	APIVersion = "sluice.dev/v1alpha1"
	Kind       = "GatewayConfiguration"
)

// Configuration is the whole file. A running daemon applies changes of fields with the tag
// `reload:"live"`; changes of other fields need a restart (see Diff). defaults.yaml has the unit
// and the default of every field; a test compares it with Default.
type Configuration struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// NodeName is the name of this gateway's Node object; if empty, it is the host name (see Node).
	NodeName   string      `json:"nodeName"`
	Interfaces []Interface `json:"interfaces"`

	// Workers is the number of packet threads; 0 is one per queue index. WorkerCPUs pins them, in
	// order; if it is empty, the daemon chooses CPUs.
	Workers    int   `json:"workers"`
	WorkerCPUs []int `json:"workerCPUs"`
	// Waiting chooses between low latency and little processor time.
	Waiting Waiting `json:"waiting"`

	// NodeAddresses selects the addresses that answer to node ports; empty selects
	// all addresses of the configured interfaces.
	NodeAddresses []AddressSelector `json:"nodeAddresses" reload:"live"`
	NodePortRange PortRange         `json:"nodePortRange"`
	SNAT          SNAT              `json:"snat"`
	Group         Group             `json:"group"`
	Proxy         Proxy             `json:"proxy"`
	DirectReturn  DirectReturn      `json:"directReturn"`
	Limits        Limits            `json:"limits" reload:"live"`

	EndpointHealth EndpointHealth `json:"endpointHealth" reload:"live"`

	Flows           Flows          `json:"flows"`
	Maglev          Maglev         `json:"maglev" reload:"live"`
	UnservedVIPPort UnservedPolicy `json:"unservedVIPPort" reload:"live"`

	UnknownConnection UnknownPolicy `json:"unknownConnection" reload:"live"`
	// Deny are clients whose packets to Services are dropped. `sluice deny` denies others.
	Deny []netip.Prefix `json:"deny" reload:"live"`

	Sockets  Sockets  `json:"sockets"`
	HostLink HostLink `json:"hostLink"`

	Kubernetes Kubernetes `json:"kubernetes"`
	Manifests  Manifests  `json:"manifests"`
	// AddressPools have the addresses for Services of type LoadBalancer in manifests.
	AddressPools []AddressPool `json:"addressPools" reload:"live"`
	// StateDir is the directory of the flow table, the pins and the sockets.
	StateDir string  `json:"stateDir"`
	BPFFS    string  `json:"bpfFS"`
	Readers  Readers `json:"readers"`
	Metrics  Metrics `json:"metrics"`
	Health   Health  `json:"health"`
	Log      Log     `json:"log"`
	FlowLog  FlowLog `json:"flowLog"`
	Drain    Drain   `json:"drain" reload:"live"`

	Sandbox Sandbox `json:"sandbox"`

	Tuning Tuning `json:"tuning"`
}

// Interface is one NIC that the gateway forwards on.
type Interface struct {
	Name     string   `json:"name"`
	Mode     Mode     `json:"mode"`
	ZeroCopy ZeroCopy `json:"zeroCopy"`
	Queues   Queues   `json:"queues"`
	NAPI     NAPI     `json:"napi"`
}

// NAPI configures how the kernel polls the NIC for all of its traffic
// (Documentation/networking/napi.rst). The daemon restores the former settings when it ends.
type NAPI struct {
	// DeferHardIRQs is the number of empty polls after which interrupts are enabled again; 0:
	// unchanged.
	DeferHardIRQs int `json:"deferHardIRQs"`
	// GROFlushTimeout is the time between polls while interrupts are disabled; 0: unchanged.
	GROFlushTimeout Duration `json:"groFlushTimeout"`
	Threaded        Threaded `json:"threaded"`
}

// Threaded chooses whether the kernel polls a NIC in separate threads.
type Threaded string

// The choices for threaded polling.
const (
	ThreadedKeep Threaded = "keep" // unchanged
	ThreadedOn   Threaded = "on"
	ThreadedOff  Threaded = "off"
)

// Mode is how the XDP program is attached.
type Mode string

// The modes of attachment.
const (
	ModeAuto    Mode = "auto"    // native if the driver supports it, else generic
	ModeNative  Mode = "native"  // in the driver; otherwise the daemon does not start
	ModeGeneric Mode = "generic" // after the driver, on any device
)

// ZeroCopy chooses whether the NIC writes into the UMEM itself.
type ZeroCopy string

// The choices for zero-copy.
const (
	ZeroCopyAuto    ZeroCopy = "auto"    // if the driver supports it
	ZeroCopyNever   ZeroCopy = "never"   // always copy
	ZeroCopyRequire ZeroCopy = "require" // otherwise the daemon does not start
)

// SNAT is the source of packets to backends.
type SNAT struct {
	// Addresses are the source addresses. A family without one uses the address that the kernel
	// would use, which is one of the outgoing interface.
	Addresses []netip.Addr `json:"addresses"`
	// Ports is the range of source ports.
	Ports PortRange `json:"ports"`
}

// Proxy has the settings for which kube-proxy has flags or fields, and the scheduler.
type Proxy struct {
	// ClusterIPs: cluster IPs are frontends for packets from outside, too.
	ClusterIPs bool `json:"clusterIPs" reload:"live"`
	// ClusterCIDRs are the addresses of pods (clusterCIDR of kube-proxy).
	ClusterCIDRs []netip.Prefix `json:"clusterCIDRs" reload:"live"`
	// MasqueradeAll: the addresses of pods are translated for ClusterIPs, too.
	MasqueradeAll bool `json:"masqueradeAll" reload:"live"`
	// ExternalIPs are the addresses that Services may have as external IPs. If empty: all addresses
	// except this node's.
	ExternalIPs []netip.Prefix `json:"externalIPs" reload:"live"`
	// DeniedHostPorts are ports of the node's own addresses that endpoints of Services must not
	// have.
	DeniedHostPorts []PortRange `json:"deniedHostPorts" reload:"live"`
	// StrictReversePath: a reply must arrive on the interface and VLAN by which packets to its
	// backend leave.
	StrictReversePath bool `json:"strictReversePath"`
	// StrictSourceRanges: loadBalancerSourceRanges apply to node ports and external IPs, too.
	StrictSourceRanges bool `json:"strictSourceRanges" reload:"live"`
	// Scheduler is the scheduler of Services without the annotation sluice.dev/scheduler.
	Scheduler Scheduler `json:"scheduler" reload:"live"`
	// NamespaceShare is the part of each bounded table that one namespace may use, in percent.
	NamespaceShare int `json:"namespaceShare" reload:"live"`
}

// DirectReturn is the VXLAN tunnel (RFC 7348) to nodes with endpoints of Services that have the
// annotation sluice.dev/forwarding: direct.
type DirectReturn struct {
	// VNI is the network identifier; 0: there is no tunnel, and such Services are translated.
	VNI int `json:"vni"`
	// Port is the UDP destination port.
	Port int `json:"port"`
}

// Limits bound the connections to each port of a Service that does not have the annotation for the
// limit; 0: no limit.
type Limits struct {
	// ConnectionsPerSource is the number of open connections, and NewConnectionsPerSource the
	// number of new ones in a second, of one IPv4 address or one /64 of IPv6.
	ConnectionsPerSource    int `json:"connectionsPerSource"`
	NewConnectionsPerSource int `json:"newConnectionsPerSource"`
	// Connections and NewConnections are the same for all sources together.
	Connections    int `json:"connections"`
	NewConnections int `json:"newConnections"`
}

// EndpointHealth configures how this gateway detects endpoints that do not answer.
type EndpointHealth struct {
	// Check is the check of endpoints of Services without the annotation sluice.dev/health-check,
	// in the same syntax (objects.ParseChecks); "": no check.
	Check string `json:"check"`
	// Passive: an endpoint without a check is checked once it leaves SYNs of clients unanswered.
	Passive bool `json:"passive"`
}

// Checks returns Check in the compiler's form; nil if it is "" or invalid.
func (h *EndpointHealth) Checks() objects.Checks {
	if h.Check == "" {
		return nil
	}
	checks, _ := objects.ParseChecks(h.Check) // validated
	return checks
}

// Scheduler is how a backend is chosen, by the names of IPVS (ipvsadm(8)).
type Scheduler string

// Schedulers lists all schedulers; the first is the default.
var Schedulers = []Scheduler{"maglev", "rr", "wrr", "lc", "wlc", "sh", "dh", "sed", "nq", "random"}

// Kubernetes is the API server as a source of objects.
type Kubernetes struct {
	Enabled bool `json:"enabled"`
	// Kubeconfig is a file; empty: the service account of the pod.
	Kubeconfig string `json:"kubeconfig"`
	// Events: problems are written as Events of their objects.
	Events bool `json:"events"`
	// NodeSelector selects the Nodes that are gateways; DaemonSet (namespace/name) runs them. If
	// either no longer has this gateway, drain.handOver leaves nothing for a next process.
	NodeSelector string `json:"nodeSelector"`
	DaemonSet    string `json:"daemonSet"`
	// StaleEndpointTimeout is for how long endpoints of a Service are still served if all of them
	// vanish at once without having terminated: a controller may have been restarted. 0: not at
	// all.
	StaleEndpointTimeout Duration `json:"staleEndpointTimeout" reload:"live"`
}

// Health has the address of /healthz and /livez in the form of kube-proxy; empty: not served.
// Health check node ports are independent of it.
type Health struct {
	Address string `json:"address"`
}

// ListensOn returns the ports on which the daemon serves metrics and health checks.
func (c *Configuration) ListensOn() (ports []uint16) {
	for _, address := range [...]string{c.Metrics.Address, c.Health.Address} {
		_, port, _ := net.SplitHostPort(address) // "" has no port
		if n, err := strconv.ParseUint(port, 10, 16); err == nil {
			ports = append(ports, uint16(n))
		}
	}
	return ports
}

// Flows has the sizes of the flow table and its timeouts.
type Flows struct {
	IPv4 int `json:"ipv4"`
	IPv6 int `json:"ipv6"`
	// Resize decides on a predecessor's flows that do not fit in these sizes.
	Resize Resize `json:"resize"`
	// Profile selects the defaults of the timeouts.
	Profile  Profile  `json:"profile"`
	Timeouts Timeouts `json:"timeouts"`
}

// Maglev has the seed of backend selection. All gateways of a cluster must have the same seed, so
// that they choose the same backends. A client that knows the seed can choose its backend.
type Maglev struct {
	// SeedFile is a file with the seed. Without it, or while it does not exist, a gateway draws a
	// seed of its own.
	SeedFile string `json:"seedFile"`
}

// UnservedPolicy decides on packets to a VIP that are for no port of a Service: other ports, and
// other protocols. At an address that the node has, too, the node gets them with every policy.
type UnservedPolicy string

// The policies for unserved ports.
const (
	UnservedPass   UnservedPolicy = "pass"
	UnservedReject UnservedPolicy = "reject"
	UnservedDrop   UnservedPolicy = "drop"
)

// UnknownPolicy decides on a segment in the middle of a TCP connection that the gateway does not
// know.
type UnknownPolicy string

// The policies for unknown connections.
const (
	UnknownReset UnknownPolicy = "reset"
	UnknownDrop  UnknownPolicy = "drop"
)

// Sockets configures how workers use their AF_XDP sockets and their cores; docs/tuning.md has
// figures.
type Sockets struct {
	// BusyPoll: if not 0, workers poll the NIC themselves (SO_BUSY_POLL, SO_PREFER_BUSY_POLL).
	BusyPoll       Duration `json:"busyPoll"`
	BusyPollBudget int      `json:"busyPollBudget"`
}

// HostLink is the veth pair through which packets go to the kernel and back.
type HostLink struct {
	// Addresses are the addresses of the kernel's end, one per family, each with a prefix that also
	// has the other end's address. Without addresses there is no host link.
	Addresses []netip.Prefix `json:"addresses"`
}

// Enabled reports whether there is a host link.
func (h *HostLink) Enabled() bool { return len(h.Addresses) > 0 }

// Manifests has the directory of Kubernetes manifests that the daemon watches.
type Manifests struct {
	Directory string `json:"directory"`
}

// Readers is the status socket for users who may read everything and change nothing.
type Readers struct {
	// Group is the name or the number of their group; empty: there is no such socket.
	Group  string `json:"group"`
	Socket string `json:"socket"`
}

// Enabled reports whether there is a socket for readers.
func (r *Readers) Enabled() bool { return r.Group != "" }

// GroupID returns the number of the group.
func (r *Readers) GroupID() (int, error) {
	if id, err := strconv.ParseUint(r.Group, 10, 31); err == nil {
		return int(id), nil
	}
	g, err := user.LookupGroup(r.Group)
	if err != nil {
		return 0, fmt.Errorf("%w: make it (groupadd --system %s), or write the number of a group, as for a pod", err,
			r.Group)
	}
	return strconv.Atoi(g.Gid)
}

// Metrics has the address of /metrics, /healthz and /readyz; empty: not served.
type Metrics struct {
	Address string `json:"address"`
	TLS     TLS    `json:"tls"`
	// TokenFile is a file of bearer tokens, one on each line. A request for /metrics must have one
	// of them; if TokenFile is empty, it needs none.
	TokenFile string `json:"tokenFile"`
	// Backends: each backend has its own series, not only each Service.
	Backends bool `json:"backends" reload:"live"`
}

// TLS has a certificate and its key, as files in PEM form. If both are empty: plain HTTP.
type TLS struct {
	CertFile string `json:"certFile"`
	KeyFile  string `json:"keyFile"`
}

// Log configures the daemon's log on standard error.
type Log struct {
	Level  LogLevel  `json:"level" reload:"live"`
	Format LogFormat `json:"format"`
}

// LogLevel is the least severe level that is written.
type LogLevel string

// LogFormat is the format of a line.
type LogFormat string

// The levels and formats of the log.
const (
	LogDebug LogLevel = "debug"
	LogInfo  LogLevel = "info"
	LogWarn  LogLevel = "warn"
	LogError LogLevel = "error"

	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

// FlowLog is the log of flows that begin and end.
type FlowLog struct {
	// Directory is where its files are; empty: there is no such log.
	Directory string `json:"directory"`
	// MaxMB is the size of all files together, in millions of bytes: the oldest ones are removed.
	MaxMB int `json:"maxMB"`
	// Traffic: the packets and bytes of each flow are counted.
	Traffic bool `json:"traffic"`
}

// Enabled reports whether there is a flow log.
func (f *FlowLog) Enabled() bool { return f.Directory != "" }

// Drain configures how the daemon stops.
type Drain struct {
	// Timeout: after SIGTERM the daemon serves flows until no TCP or SCTP connection is open, for
	// at most this time. It is not ready from SIGTERM on.
	Timeout Duration `json:"timeout"`
	// HandOver: the daemon ends at once and leaves the flow table, pins, maps, programs and host
	// link to the next process, like after a crash. Use it for rollouts: they end no connection.
	HandOver bool `json:"handOver"`
}

// Sandbox chooses whether the daemon restricts itself after its start (package sandbox).
type Sandbox string

// The choices for the sandbox.
const (
	SandboxEnforce Sandbox = "enforce" // otherwise the daemon does not start
	SandboxNone    Sandbox = "none"
)

// StatusSocket returns the path of the socket to which `sluice status` and other commands connect.
func (c *Configuration) StatusSocket() string { return filepath.Join(c.StateDir, "status.sock") }

// PulseSocket returns the path of the socket on which the gateway reports that it forwards, and
// which VIPs.
func (c *Configuration) PulseSocket() string {
	return filepath.Join(c.StateDir, PulseDirectory, PulseSocketFile)
}

const (
	// PulseDirectory is in stateDir and contains only that socket: the announcer's container mounts
	// it, and can reach no other socket of the gateway through it.
	PulseDirectory = "pulse"
	// PulseSocketFile is the name of that socket.
	PulseSocketFile = "pulse.sock"
)

// WaitingSocket returns the path of the status socket of a process that waits for another one.
func (c *Configuration) WaitingSocket() string { return filepath.Join(c.StateDir, WaitingSocketFile) }

// ReloadSocket returns the path of the status socket of a waiting process that a reload has
// started.
func (c *Configuration) ReloadSocket() string { return filepath.Join(c.StateDir, ReloadSocketFile) }

// HandOverSocket returns the path of the socket on which the next process asks for a hand-over.
func (c *Configuration) HandOverSocket() string { return filepath.Join(c.StateDir, HandOverSocketFile) }

// HandOverSocketFile is the name of that socket.
const HandOverSocketFile = "handover.sock"

// WaitingSocketFile is the name of a waiting process's status socket.
const WaitingSocketFile = "waiting.sock"

// ReloadSocketFile is the name of the status socket of a process that a reload has started. It
// differs from WaitingSocketFile because another process may wait, too.
const ReloadSocketFile = "reload.sock"

// WaitingVariable is an environment variable with the path of a waiting process's status socket, in
// place of WaitingSocket. The process that started it connects there.
const WaitingVariable = "SLUICE_WAITING_SOCKET"

// NodeNameVariable is an environment variable with the node's name, for a configuration without
// nodeName: the pods of a DaemonSet share a configuration.
const NodeNameVariable = "SLUICE_NODE_NAME"

// Node returns the node's name: the configured one, the environment's, or the host's in the
// kubelet's form (trimmed, in lower case).
func (c *Configuration) Node() (string, error) {
	if c.NodeName != "" {
		return c.NodeName, nil
	}
	if name := os.Getenv(NodeNameVariable); name != "" {
		return name, nil
	}
	host, err := nodename.Host()
	if err != nil {
		return "", fmt.Errorf("nodeName is not set, and %w: set it to the name of this node's Node object", err)
	}
	return host, nil
}
