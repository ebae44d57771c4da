package config

import (
	_ "embed"
	"net/netip"
	"time"
)

//go:embed defaults.yaml
var defaultsYAML []byte

// DefaultsYAML returns every default as a commented file. A test compares it with Default.
func DefaultsYAML() []byte { return append([]byte(nil), defaultsYAML...) }

// Default returns a configuration with every default; only the interfaces are
// missing. No list is nil, so that an empty one prints as [].
func Default() *Configuration {
	return &Configuration{
		APIVersion:    APIVersion,
		Kind:          Kind,
		Interfaces:    []Interface{},
		WorkerCPUs:    []int{},
		Waiting:       WaitingDedicated,
		NodeAddresses: []AddressSelector{},
		NodePortRange: PortRange{30000, 32767},
		SNAT: SNAT{
			Addresses: []netip.Addr{},
			// The range is below the node ports and the host's ephemeral range (32768-60999), and
			// above the ports on which a node's daemons listen (kubelet 10250, VXLAN 8472): a
			// packet to the range that belongs to no flow of the gateway takes a detour through
			// user space to the kernel, which the node's own traffic should not take.
			Ports: PortRange{16384, 29999},
		},
		Group: Group{Members: []GroupMember{}, Port: 9473, StateDir: "/var/lib/sluice"},
		Proxy: Proxy{
			ClusterIPs: true, ClusterCIDRs: []netip.Prefix{}, ExternalIPs: []netip.Prefix{},
			DeniedHostPorts: []PortRange{
				{22, 22}, {53, 53}, {179, 179}, {2379, 2380}, {6443, 6443}, {9470, 9470}, {10248, 10250},
				{10255, 10257}, {10259, 10259},
			},
			Scheduler: Schedulers[0], NamespaceShare: 50,
		},
		DirectReturn:   DirectReturn{Port: 4789},
		EndpointHealth: EndpointHealth{Passive: true},
		Flows: Flows{
			IPv4:     1 << 20,
			IPv6:     1 << 18,
			Resize:   ResizeFit,
			Profile:  ProfileDefault,
			Timeouts: TimeoutsOf(ProfileDefault),
		},
		UnservedVIPPort:   UnservedReject,
		UnknownConnection: UnknownReset,
		Deny:              []netip.Prefix{},
		Sockets: Sockets{
			BusyPollBudget: 64, // NAPI_POLL_WEIGHT
		},
		HostLink: HostLink{
			Addresses: []netip.Prefix{
				netip.MustParsePrefix("192.0.0.1/30"),
				netip.MustParsePrefix("fd73:6c75:6963:6500::1/126"),
			},
		},
		Kubernetes:   Kubernetes{Events: true},
		Manifests:    Manifests{Directory: "/etc/sluice/manifests"},
		AddressPools: []AddressPool{},
		StateDir:     "/run/sluice",
		BPFFS:        "/sys/fs/bpf",
		Readers:      Readers{Socket: "/run/sluice-readers/status.sock"},
		Metrics:      Metrics{Address: "127.0.0.1:9470"},
		Health:       Health{Address: ":10256"},
		Log:          Log{Level: LogInfo, Format: LogText},
		FlowLog:      FlowLog{MaxMB: 2000},
		Drain:        Drain{Timeout: Duration(10 * time.Second)},
		Sandbox:      SandboxEnforce,
		Tuning: Tuning{
			Precedence:      PrecedenceAuto,
			RingSize:        2048,
			FrameSize:       AutoFrameSize,
			AffinityClients: 1 << 18,
			LimitSources:    1 << 16,
			Fragments:       8192,
			ICMPRate:        1000, // the kernel's default: net.ipv4.icmp_msgs_per_sec
			PathMTUFloor:    1200, // IPv4 in IPv6 over its smallest link: 1280 - 40 (RFC 8200 section 5)
			TimeWaitBackend: timeWaitBackendOf(ProfileDefault),
			PassAfter:       Duration(30 * time.Second),
			HostLinkName:    "sluice",
		},
	}
}

// setDefaults sets the defaults of a list's element before it is read.
func (i *Interface) setDefaults() {
	*i = Interface{Mode: ModeAuto, ZeroCopy: ZeroCopyAuto, NAPI: NAPI{Threaded: ThreadedKeep}}
}
