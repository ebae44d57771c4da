// Package config is the gateway's configuration file: one strict YAML (or JSON)
// document of kind GatewayConfiguration.
//
//	//	file ──decode──▶ Configuration ──Validate──▶ the daemon
//	          ▲                                       │
//	     Default()                             Diff(next) at reload
//
// Three rules hold. A field that is not known is refused, so a misspelt one never
// passes for its default. All problems are reported at once, each with its line, its field and a
// remedy. Default returns all defaults, and `sluice config defaults` prints them; there are no
// others.
//
// A Configuration is a plain value. It is not changed after Load; a reload makes a new one.
package config

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/host/nodename"
)

// APIVersion and Kind are the first fields of a file.
const (
	APIVersion = "sluice.dev/v1alpha1"
	Kind       = "GatewayConfiguration"
)

// Configuration is the whole file. A running daemon applies changes of fields with the tag
// `reload:"live"`; the others need a restart (see Diff). Units and defaults of every field are in
// defaults.yaml, which a test compares with Default.
type Configuration struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// NodeName is the Node object that this gateway is; empty takes the host name (see Node).
	NodeName   string      `json:"nodeName"`
	Interfaces []Interface `json:"interfaces"`

	// Workers counts the packet threads; 0 is one per queue index. WorkerCPUs pins
	// them, in order; empty leaves the choice to the daemon.
	Workers    int   `json:"workers"`
	WorkerCPUs []int `json:"workerCPUs"`
	// Waiting says whether latency comes first or processor time does.
	Waiting Waiting `json:"waiting"`

	// NodeAddresses selects the addresses that answer to node ports; empty selects
	// all addresses of the configured interfaces.
	NodeAddresses []AddressSelector `json:"nodeAddresses" reload:"live"`
	NodePortRange PortRange         `json:"nodePortRange"`
	SNAT          SNAT              `json:"snat"`
	Proxy         Proxy             `json:"proxy"`
	Limits        Limits            `json:"limits" reload:"live"`

	EndpointHealth EndpointHealth `json:"endpointHealth" reload:"live"`

	Flows           Flows          `json:"flows"`
	Maglev          Maglev         `json:"maglev" reload:"live"`
	UnservedVIPPort UnservedPolicy `json:"unservedVIPPort" reload:"live"`

	UnknownConnection UnknownPolicy `json:"unknownConnection" reload:"live"`

	Sockets  Sockets  `json:"sockets"`
	HostLink HostLink `json:"hostLink"`

	Kubernetes Kubernetes `json:"kubernetes"`
	Manifests  Manifests  `json:"manifests"`
	// AddressPools give Services of type LoadBalancer in manifests their addresses.
	AddressPools []AddressPool `json:"addressPools" reload:"live"`
	// StateDir is where the flow table, the pins and the status socket are.
	StateDir string  `json:"stateDir"`
	BPFFS    string  `json:"bpfFS"`
	Metrics  Metrics `json:"metrics"`
	Health   Health  `json:"health"`
	Log      Log     `json:"log"`
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

// NAPI is how the kernel polls the NIC for all of its traffic (Documentation/networking/napi.rst).
// The settings are put back when the daemon ends.
type NAPI struct {
	// DeferHardIRQs is after how many empty polls interrupts are on again; 0 leaves it as it is.
	DeferHardIRQs int `json:"deferHardIRQs"`
	// GROFlushTimeout is the time between polls while they are off; 0 leaves it as it is.
	GROFlushTimeout Duration `json:"groFlushTimeout"`
	Threaded        Threaded `json:"threaded"`
}

// Threaded is whether the kernel polls a NIC in threads of its own.
type Threaded string

// The choices for threaded polling.
const (
	ThreadedKeep Threaded = "keep" // as it is
	ThreadedOn   Threaded = "on"
	ThreadedOff  Threaded = "off"
)

// Mode is how the XDP program is attached.
type Mode string

// The modes of attachment.
const (
	ModeAuto    Mode = "auto"    // native where the driver can, generic otherwise
	ModeNative  Mode = "native"  // in the driver, or refuse to start
	ModeGeneric Mode = "generic" // after the driver, on any device
)

// ZeroCopy is whether the NIC may write into the UMEM itself.
type ZeroCopy string

// The choices for zero-copy.
const (
	ZeroCopyAuto    ZeroCopy = "auto"    // where the driver takes it
	ZeroCopyNever   ZeroCopy = "never"   // always copy
	ZeroCopyRequire ZeroCopy = "require" // or refuse to start
)

// SNAT is the source of packets to backends.
type SNAT struct {
	// Addresses are the source addresses. A family that has none uses the address that the kernel
	// would: that of the outgoing interface.
	Addresses []netip.Addr `json:"addresses"`
	// Ports is the range of source ports.
	Ports PortRange `json:"ports"`
}

// Proxy has the settings that kube-proxy has flags and fields for, and the scheduler.
type Proxy struct {
	// ClusterIPs: they are frontends for packets from outside, too.
	ClusterIPs bool `json:"clusterIPs" reload:"live"`
	// ClusterCIDRs are the addresses of pods (clusterCIDR of kube-proxy).
	ClusterCIDRs []netip.Prefix `json:"clusterCIDRs" reload:"live"`
	// MasqueradeAll: pods do not keep their address towards ClusterIPs either.
	MasqueradeAll bool `json:"masqueradeAll" reload:"live"`
	// ExternalIPs are the addresses that Services may have as external IPs. Empty: all but those of
	// this node.
	ExternalIPs []netip.Prefix `json:"externalIPs" reload:"live"`
	// DeniedHostPorts are ports of the node's own addresses that no endpoint of a Service may have.
	DeniedHostPorts []PortRange `json:"deniedHostPorts" reload:"live"`
	// StrictReversePath: a reply must come from the interface and VLAN by which packets to its
	// backend leave.
	StrictReversePath bool `json:"strictReversePath"`
	// StrictSourceRanges: loadBalancerSourceRanges guard node ports and external IPs, too.
	StrictSourceRanges bool `json:"strictSourceRanges" reload:"live"`
	// Scheduler is that of Services without the annotation sluice.dev/scheduler.
	Scheduler Scheduler `json:"scheduler" reload:"live"`
	// NamespaceShare is the part of each bounded table that one namespace may use, in percent.
	NamespaceShare int `json:"namespaceShare" reload:"live"`
}

// Limits bound the connections to each port of a Service that has no annotation for it; 0 is no
// limit.
type Limits struct {
	// ConnectionsPerSource may be open at once, and NewConnectionsPerSource be opened in a second,
	// of one IPv4 address or one /64 of IPv6.
	ConnectionsPerSource    int `json:"connectionsPerSource"`
	NewConnectionsPerSource int `json:"newConnectionsPerSource"`
	// Connections and NewConnections are of all sources together.
	Connections    int `json:"connections"`
	NewConnections int `json:"newConnections"`
}

// EndpointHealth is how this gateway finds out that an endpoint does not answer.
type EndpointHealth struct {
	// Check is how endpoints are checked of Services without the annotation
	// sluice.dev/health-check, which has the same syntax (objects.ParseChecks); "" is not at all.
	Check string `json:"check"`
	// Passive: an endpoint without a check that no client's SYN gets an answer from is checked
	// then.
	Passive bool `json:"passive"`
	// ChecksPerSecond bounds the checks of all endpoints together.
	ChecksPerSecond int `json:"checksPerSecond"`
}

// Checks returns Check as it is compiled; nil where it is "" or invalid.
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
	// Kubeconfig is a file; empty is the service account of the pod.
	Kubeconfig string `json:"kubeconfig"`
	// Events: problems are written as Events of their objects.
	Events bool `json:"events"`
	// NodeSelector selects the Nodes that are gateways, and DaemonSet (namespace/name) runs them:
	// with either gone, drain.handOver leaves nothing to a next process.
	NodeSelector string `json:"nodeSelector"`
	DaemonSet    string `json:"daemonSet"`
	// StaleEndpointTimeout is how long endpoints of a Service are served that vanish all at once
	// without having been seen terminating: a controller may have been restarted. 0 is not at all.
	StaleEndpointTimeout Duration `json:"staleEndpointTimeout" reload:"live"`
}

// Health is where /healthz and /livez are served as kube-proxy serves them; empty
// serves nothing. Health check node ports are not affected.
type Health struct {
	Address string `json:"address"`
}

// ListensOn returns the ports that the daemon serves metrics and health checks at.
func (c *Configuration) ListensOn() (ports []uint16) {
	for _, address := range [...]string{c.Metrics.Address, c.Health.Address} {
		_, port, _ := net.SplitHostPort(address) // "" is none
		if n, err := strconv.ParseUint(port, 10, 16); err == nil {
			ports = append(ports, uint16(n))
		}
	}
	return ports
}

// Flows sizes the flow table and its timeouts.
type Flows struct {
	IPv4 int `json:"ipv4"`
	IPv6 int `json:"ipv6"`
	// Resize is what becomes of a predecessor's flows that do not fit in these.
	Resize Resize `json:"resize"`
	// Profile selects the defaults of the timeouts.
	Profile  Profile  `json:"profile"`
	Timeouts Timeouts `json:"timeouts"`
}

// Maglev names the seed of backend selection. All gateways of a cluster must have the same, so that
// they choose the same backends. A client that knows it can choose its backend.
type Maglev struct {
	// SeedFile is a file with the seed. While it does not exist, Seed is used.
	SeedFile string `json:"seedFile"`
	// Seed is the seed itself. If it is empty, too, a gateway draws a seed of its own.
	Seed string `json:"seed" secret:"true"`
}

// UnservedPolicy is how packets to a VIP are treated that are for no port of a Service: other
// ports, and other protocols. At an address that the node has, too, they are the node's with every
// policy.
type UnservedPolicy string

// The policies for unserved ports.
const (
	UnservedPass   UnservedPolicy = "pass"
	UnservedReject UnservedPolicy = "reject"
	UnservedDrop   UnservedPolicy = "drop"
)

// UnknownPolicy is what a segment gets that is in the middle of a TCP connection which the gateway
// does not know.
type UnknownPolicy string

// The policies for unknown connections.
const (
	UnknownReset UnknownPolicy = "reset"
	UnknownDrop  UnknownPolicy = "drop"
)

// Sockets is how workers use their AF_XDP sockets and their cores; docs/tuning.md has the
// figures.
type Sockets struct {
	// TxBudget is how many packets one system call may send in copy mode; 0 is tuning.ringSize.
	TxBudget int `json:"txBudget"`
	// BusyPoll: workers poll the NIC themselves, if not 0 (SO_BUSY_POLL, SO_PREFER_BUSY_POLL).
	BusyPoll       Duration `json:"busyPoll"`
	BusyPollBudget int      `json:"busyPollBudget"`
}

// HostLink is the veth pair by which packets are given to the kernel.
type HostLink struct {
	// Addresses of the kernel's end, one per family, each with a prefix that has room for the other
	// end; without one there is no host link.
	Addresses []netip.Prefix `json:"addresses"`
}

// Enabled reports whether there is to be a host link.
func (h *HostLink) Enabled() bool { return len(h.Addresses) > 0 }

// Manifests is the directory of Kubernetes manifests that is watched.
type Manifests struct {
	Directory string `json:"directory"`
}

// Metrics is where /metrics, /healthz and /readyz are served; empty serves nothing.
type Metrics struct {
	Address string `json:"address"`
	TLS     TLS    `json:"tls"`
	// TokenFile is a file of bearer tokens, one in each line. A request for /metrics must have one
	// of them; with an empty path none is needed.
	TokenFile string `json:"tokenFile"`
	// Backends: each backend has series of its own, not each Service alone.
	Backends bool `json:"backends" reload:"live"`
}

// TLS is a certificate and its key, files in PEM form; both empty is plain HTTP.
type TLS struct {
	CertFile string `json:"certFile"`
	KeyFile  string `json:"keyFile"`
}

// Log shapes the daemon's log on standard error.
type Log struct {
	Level  LogLevel  `json:"level" reload:"live"`
	Format LogFormat `json:"format"`
}

// LogLevel is the least severe level that is written.
type LogLevel string

// LogFormat is how a line of the log looks.
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

// Drain is how the daemon stops.
type Drain struct {
	// Timeout: after SIGTERM flows are served until no TCP connection is open, for at
	// most this long; readiness is off at once.
	Timeout Duration `json:"timeout"`
	// HandOver: the daemon ends at once and leaves flow table, pins, maps, programs and host link
	// to the next process, as a crash does. For rollouts: no connection ends by them.
	HandOver bool `json:"handOver"`
}

// Sandbox is whether the daemon confines itself after its start (package sandbox).
type Sandbox string

// The choices for the sandbox.
const (
	SandboxEnforce Sandbox = "enforce" // or refuse to start
	SandboxNone    Sandbox = "none"
)

// StatusSocket returns the path of the socket that `sluice status` and the others talk to.
func (c *Configuration) StatusSocket() string { return filepath.Join(c.StateDir, "status.sock") }

// PulseSocket returns the path of the socket on which the gateway says that it forwards, and what.
func (c *Configuration) PulseSocket() string {
	return filepath.Join(c.StateDir, PulseDirectory, PulseSocketFile)
}

const (
	// PulseDirectory is in stateDir and has nothing but that socket: a container of who reads the
	// pulse has it mounted, and can reach no other socket of the gateway by it.
	PulseDirectory = "pulse"
	// PulseSocketFile is that socket's name.
	PulseSocketFile = "pulse.sock"
)

// WaitingSocket returns the path of the status socket of a process that waits for another one.
func (c *Configuration) WaitingSocket() string { return filepath.Join(c.StateDir, WaitingSocketFile) }

// ReloadSocket returns the same of one that a reload has started.
func (c *Configuration) ReloadSocket() string { return filepath.Join(c.StateDir, ReloadSocketFile) }

// HandOverSocket returns the path of the socket where the next process asks for a hand-over.
func (c *Configuration) HandOverSocket() string { return filepath.Join(c.StateDir, HandOverSocketFile) }

// HandOverSocketFile is its name, beside the others.
const HandOverSocketFile = "handover.sock"

// WaitingSocketFile is the name of a waiting process's status socket, beside the other one.
const WaitingSocketFile = "waiting.sock"

// ReloadSocketFile is the name of that of a process which a reload has started, as another one may
// wait, too.
const ReloadSocketFile = "reload.sock"

// WaitingVariable is an environment variable with the path of a process's status socket while it
// waits, in place of WaitingSocket: who has started it asks there.
const WaitingVariable = "SLUICE_WAITING_SOCKET"

// NodeNameVariable is an environment variable that names the node if the configuration does not:
// pods of a DaemonSet share a configuration.
const NodeNameVariable = "SLUICE_NODE_NAME"

// Node returns the node's name: the configured one, or the environment's, or the host's
// as the kubelet derives it (trimmed and in lower case).
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
