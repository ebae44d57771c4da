package doctor

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/gateway/seed"
	"sluice.dev/sluice/host/nic/ethtool"
	"sluice.dev/sluice/host/nic/netdev"
	"sluice.dev/sluice/host/sandbox"
	"sluice.dev/sluice/internal/trusted"
	"sluice.dev/sluice/serve/status"
)

// healthy is a host on which nothing is wrong.
func healthy() *Facts {
	c := config.Default()
	c.Interfaces = []config.Interface{{Name: "eth0", Mode: config.ModeAuto, ZeroCopy: config.ZeroCopyAuto}}
	return &Facts{
		Config: c, ConfigFile: "gw.yaml",
		Kernel: "6.18.1-generic", Caps: ^uint64(0), CapsOf: "this command", BPFFS: true, Memlock: unix.RLIM_INFINITY,
		HugePages: 4, CPUs: 4,
		Host: config.Host{Interfaces: []string{"eth0"}, Ephemeral: config.PortRange{First: 32768, Last: 60999}},
		Sysctls: map[string]string{"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "1",
			"net.ipv4.conf.all.rp_filter": "0", "net.ipv4.conf.eth0.rp_filter": "2"},
		Interfaces: []Interface{{
			Name: "eth0", Up: true, Kind: "device", Driver: "mlx5_core", MTU: 1500, Queues: 4, RSSQueues: 4,
			Features: map[string]bool{"rx-gro": true}, XDPFeatures: netdev.Basic | netdev.Redirect | netdev.ZeroCopy,
			XDPKnown: true,
		}},
		Manifests: true, Socket: SocketAbsent, SeedErr: seed.ErrNone,
	}
}

const (
	byAddresses = ethtool.HashSource | ethtool.HashDestination
	byPorts     = byAddresses | ethtool.HashFirstPort | ethtool.HashSecondPort
)

func listener(protocol, addr string) Listener {
	return Listener{protocol, netip.MustParseAddrPort(addr)}
}

func TestHealthy(t *testing.T) {
	for _, f := range Examine(healthy()) {
		if f.Level != OK || f.Do != "" || f.Found == "" {
			t.Errorf("%+v", f)
		}
	}
	if Failed(Examine(healthy())) {
		t.Error("Failed is true")
	}
}

// TestEveryKeptCapability: a host without a capability that the gateway keeps has a finding about
// it, which is a warning if workers only lose their precedence.
func TestEveryKeptCapability(t *testing.T) {
	for _, c := range sandbox.Kept {
		f := healthy()
		f.Caps &^= 1<<c.Bit | 1<<unix.CAP_SYS_ADMIN
		f.Memlock = 8 << 20
		want := Fail
		if c.Bit == unix.CAP_SYS_NICE {
			want = Warn
		}
		if !slices.ContainsFunc(Examine(f), func(got Finding) bool {
			return got.Level == want && strings.Contains(got.Found+got.Do, "CAP_"+c.Name)
		}) {
			t.Errorf("no finding about CAP_%s", c.Name)
		}
	}
}

// TestFindings gives each check a host on which only it has something to say.
func TestFindings(t *testing.T) {
	eth := func(change func(*Interface)) func(*Facts) { return func(f *Facts) { change(&f.Interfaces[0]) } }
	without := func(bits ...uint) func(*Facts) {
		return func(f *Facts) {
			for _, b := range bits {
				f.Caps &^= 1 << b
			}
		}
	}
	second := func(queues, most int) func(*Facts) {
		return func(f *Facts) {
			f.Config.Interfaces = append(f.Config.Interfaces, config.Interface{Name: "eth1", Mode: config.ModeAuto,
				ZeroCopy: config.ZeroCopyAuto})
			f.Interfaces = append(f.Interfaces, f.Interfaces[0])
			d := &f.Interfaces[1]
			d.Name, d.Queues, d.RSSQueues, d.MaxQueues = "eth1", queues, queues, most
			f.Sysctls["net.ipv4.conf.eth1.rp_filter"] = "0"
		}
	}
	for _, c := range []struct {
		name         string
		change       func(*Facts)
		level        Level
		check, found string
		what         string // to do, in part
	}{
		{"a seed of another gateway's", func(f *Facts) {
			f.Config.Kubernetes.Enabled = true
			f.Seed, f.SeedErr = seed.Find(f.Config)
			f.Config.Kubernetes.Enabled = false
		}, Warn, "maglev-seed", "another gateway chooses other backends", "maglev.seedFile"},
		{"a seed that cannot be read", func(f *Facts) { f.SeedErr = errors.New("maglev.seedFile: no") }, Fail,
			"maglev-seed", "maglev.seedFile: no", "correct the file"},
		{"a seed that the daemon warns of", func(f *Facts) {
			f.Running = &status.StatusView{Ready: true, Conditions: []status.ConditionView{status.Warning(
				seed.Condition, "public")}}
		}, Warn, "maglev-seed", "public", "sluice status"},
		{"old kernel", func(f *Facts) { f.Kernel = "6.1.0-18-amd64" }, Fail, "kernel", "6.1.0-18-amd64",
			"newer kernel"},
		{"strange kernel", func(f *Facts) { f.Kernel = "next" }, Warn, "kernel", "next", "uname"},
		{"no AF_XDP", func(f *Facts) { f.AFXDP = unix.EAFNOSUPPORT }, Fail, "af_xdp", "the kernel has no AF_XDP",
			"CONFIG_XDP_SOCKETS"},
		{"AF_XDP refused", func(f *Facts) { f.AFXDP = unix.EPERM }, Warn, "af_xdp", "may not make", "CAP_NET_RAW"},
		{"AF_XDP fails", func(f *Facts) { f.AFXDP = unix.ENOMEM }, Fail, "af_xdp", "cannot allocate memory", "dmesg"},
		{"no capability", without(unix.CAP_NET_RAW, unix.CAP_NET_ADMIN), Fail, "capabilities",
			"missing CAP_NET_ADMIN (programs on devices, host link, routes, neighbours), CAP_NET_RAW (AF_XDP", "root"},
		{"no CAP_BPF", without(unix.CAP_BPF, unix.CAP_SYS_ADMIN), Fail, "capabilities", "missing CAP_BPF", "root"},
		{"bad configuration", func(f *Facts) { f.Config, f.ConfigError = nil, errors.New("gw.yaml:1: kind: is wrong") },
			Fail, "configuration", "kind: is wrong", "correct the file"},
		{"no configuration", func(f *Facts) { f.Config = nil }, Warn, "configuration", "none given", "--config"},
		{"daemon not ready", func(f *Facts) { f.Running = &status.StatusView{PID: 7, NotReady: []string{"draining"}} },
			Warn, "daemon", "pid 7, not ready: draining", "sluice status"},
		{"daemon's condition", func(f *Facts) {
			f.Running = &status.StatusView{Ready: true, Conditions: []status.ConditionView{{Name: "worker-1",
				Level: "fail", Detail: "stands still"}, {Name: "x", Level: "ok"}}}
		}, Fail, "worker-1", "stands still", "sluice status"},
		{"little locked memory", func(f *Facts) { f.Memlock = 8 << 20; without(unix.CAP_IPC_LOCK)(f) }, Fail, "memlock",
			"64 MiB of packet memory, locked twice (128 MiB) because there are sockets in zero-copy and in copy " +
				"mode, limit 8 MiB", "CAP_IPC_LOCK"},
		{"little locked memory, one mode", func(f *Facts) {
			f.Memlock, f.Config.HostLink.Addresses = 8<<20, nil
			without(unix.CAP_IPC_LOCK)(f)
		}, Fail, "memlock", "32 MiB of packet memory, limit 8 MiB", "CAP_IPC_LOCK"},
		{"no forwarding", func(f *Facts) { f.Sysctls["net.ipv4.ip_forward"] = "0" }, Warn, "forwarding",
			"net.ipv4.ip_forward is 0", "sysctl net.ipv4.ip_forward=1"},
		{"forwarding unknown", func(f *Facts) { delete(f.Sysctls, "net.ipv6.conf.all.forwarding") }, Warn, "forwarding",
			"cannot be read", "make sure"},
		{"ephemeral ports", func(f *Facts) { f.Host.Ephemeral.First = 1024 }, Fail, "snat-ports",
			"also assigns port 16384 of it (1024-60999)", "ip_local_reserved_ports=16384-29999"},
		{"listener in SNAT range", func(f *Facts) {
			f.Listeners = []Listener{listener("tcp", "0.0.0.0:20000"), listener("tcp", "127.0.0.1:20001"),
				listener("tcp", "0.0.0.0:22")}
		}, Warn, "snat-ports", "sockets of the node listen in the range: tcp 0.0.0.0:20000", "detour"},
		{"source ports in use are not known", func(f *Facts) { f.PortsError = errors.New("timed out") }, Warn,
			"source-ports", "does not report how many are in use: timed out", "try again"},
		{"source addresses wait for a restart", func(f *Facts) {
			f.Running = &status.StatusView{Ready: true}
			f.Running.Config.NeedRestart = []string{"snat.addresses: [] stays until the daemon restarts"}
		}, Warn, "source-ports", "other source ports than the file: snat.addresses: [] stays", "restart the daemon"},
		{"many listeners", func(f *Facts) {
			for p := range 8 {
				f.Listeners = append(f.Listeners,
					Listener{"udp", netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(31000+p))})
			}
		}, Warn, "node-ports", "udp 0.0.0.0:31004, and 3 more", "move the listener"},
		{"metrics port taken", func(f *Facts) { f.Listeners = []Listener{listener("tcp", "[::]:9470")} }, Warn,
			"metrics-port", "taken: tcp [::]:9470", "metrics.address"},
		{"no bpffs", func(f *Facts) { f.BPFFS = false; without(unix.CAP_SYS_ADMIN)(f) }, Fail, "bpffs", "not mounted",
			"mount -t bpf bpf /sys/fs/bpf"},
		{"no manifests", func(f *Facts) { f.Manifests = false }, Fail, "manifests", "no such directory",
			"manifests.directory"},
		{"state that others may write", func(f *Facts) {
			f.StateRefused = &trusted.Refusal{Path: f.Config.StateDir, Why: "may be written by others",
				Do: "chmod go-w it"}
		}, Fail, "state-dir", "may be written by others", "chmod go-w it"},
		{"manifests below a directory that others may write", func(f *Facts) {
			f.ManifestsRefused = &trusted.Refusal{Path: "/srv", Why: "may be written by others", Do: "chmod go-w /srv"}
		}, Fail, "manifests", "/srv may be written by others", "chmod go-w /srv"},
		{"state on disk", func(f *Facts) { f.StateDisk = true }, Warn, "state-dir", "not on a tmpfs", "under /run"},
		{"state on disk, and /run too", func(f *Facts) { f.StateDisk, f.RunDisk = true, true }, Warn, "state-dir",
			"not on a tmpfs", "mount -t tmpfs -o mode=0755 tmpfs /run/sluice"},
		{"no kubeconfig", func(f *Facts) {
			f.Config.Kubernetes.Enabled, f.Config.Kubernetes.Kubeconfig, f.API = true, "/etc/kubeconfig",
				errors.New("no such file")
		}, Fail, "kubernetes", "no such file", "kubectl --kubeconfig /etc/kubeconfig"},
		{"no service account", func(f *Facts) {
			f.Config.Kubernetes.Enabled, f.API = true,
				errors.New("this is not a pod")
		}, Fail, "kubernetes", "not a pod", "kubernetes.kubeconfig"},
		{"daemon elsewhere", func(f *Facts) { f.Running, f.OtherNetNS = &status.StatusView{Ready: true}, 7 }, Warn,
			"network-namespace", "in another", "nsenter -t 7 -n"},
		{"readers without a socket", func(f *Facts) {
			f.Config.Readers.Group, f.ReadersErr = "ops", errors.New("user: unknown group ops")
		}, Warn, "readers", "unknown group ops", "condition readers"},
		{"socket of root", func(f *Facts) { f.Socket = SocketHidden }, Warn, "status-socket", "may not open it",
			"as root"},
		{"program of root", eth(func(d *Interface) { d.Program, d.ProgramHidden = "program 3", true }), Warn,
			"xdp-program", "program 3 is attached, and this command may not read", "as root"},
		{"a daemon in generic mode", func(f *Facts) {
			f.Running = &status.StatusView{Ready: true, Interfaces: []status.InterfaceView{{Name: "eth0",
				Mode: "generic", Reason: "the driver refuses native mode", Queues: []status.QueueView{{Bound: true}}}}}
		}, Warn, "driver-mode", "generic: the driver refuses native mode", "fraction"},
		{"obstacle at the socket", func(f *Facts) { f.Socket = SocketObstacle }, Fail, "status-socket",
			"another file", "stateDir"},

		{"no interface", eth(func(d *Interface) { *d = Interface{Name: "eth0", Err: errors.New("no such interface")} }),
			Fail, "interface", "no such interface", "ip link"},
		{"down", eth(func(d *Interface) { d.Up = false }), Warn, "interface", "down, driver mlx5_core",
			"ip link set eth0 up"},
		{"bridged", eth(func(d *Interface) { d.Master = "bridge" }), Warn, "enslaved", "to a bridge", "intended"},
		{"bond", eth(func(d *Interface) { d.Kind = "bond" }), Warn, "device", "is a bond", "devices under it"},
		{"foreign program", eth(func(d *Interface) { d.Program = "xdp_lb" }), Fail, "xdp-program", "xdp_lb is attached",
			"ip link set eth0 xdp off"},
		{"driver unknown", eth(func(d *Interface) { d.XDPKnown = false }), Warn, "driver-mode",
			"does not report the XDP features of driver mlx5_core", "sluice status"},
		{"loses programs", eth(func(d *Interface) { d.Driver = "vmxnet3" }), Warn, "driver-mode",
			"generic, copy: driver vmxnet3 runs no native XDP program any more once the link was down", "mode: native"},
		{"loses programs, native", func(f *Facts) {
			f.Interfaces[0].Driver, f.Interfaces[0].Program, f.Config.Interfaces[0].Mode = "vmxnet3", "steer",
				config.ModeNative
		}, Warn, "driver-mode", "mode is native, but driver vmxnet3 runs", "auto or generic"},
		{"generic only", eth(func(d *Interface) { d.XDPFeatures = 0 }), Warn, "driver-mode",
			"generic, copy: driver mlx5_core has no native XDP", "fraction"},
		{"generic wanted", func(f *Facts) { f.Config.Interfaces[0].Mode = config.ModeGeneric }, Warn, "driver-mode",
			"mode is generic in the configuration", "fraction"},
		{"veth of fewer queues", eth(func(d *Interface) {
			d.Kind, d.XDPFeatures, d.PeerFeatures = "veth", 0, map[string]bool{}
		}), Warn, "driver-mode", "more transmit queues", "ethtool -L eth0 rx"},
		{"native wanted", func(f *Facts) {
			f.Config.Interfaces[0].Mode = config.ModeNative
			f.Interfaces[0].XDPFeatures = netdev.Basic
		}, Fail, "driver-mode", "driver mlx5_core has no native XDP", "auto or generic"},
		{"zero-copy wanted", func(f *Facts) {
			f.Config.Interfaces[0].ZeroCopy = config.ZeroCopyRequire
			f.Interfaces[0].XDPFeatures &^= netdev.ZeroCopy
		}, Fail, "driver-mode", "driver mlx5_core has no zero-copy", "zeroCopy to auto"},
		{"queue not bound", func(f *Facts) {
			f.Running = &status.StatusView{Ready: true,
				Interfaces: []status.InterfaceView{{Name: "eth0", Mode: "native", Queues: []status.QueueView{
					{Queue: 0, Bound: true, ZeroCopy: true}, {Queue: 1, Reason: "busy"}}}}}
		}, Fail, "driver-mode", "not bound: busy", "another process"},
		{"too many queues wanted", func(f *Facts) { f.Config.Interfaces[0].Queues = 8 }, Fail, "queues",
			"8 configured, but it has 4", "ethtool -L eth0 combined 8"},
		{"spread too far", func(f *Facts) { f.Config.Interfaces[0].Queues = 2 }, Warn, "queues",
			"packets are spread over 4", "ethtool -X eth0 equal 2, then ethtool -L eth0 combined 2"},
		{"spread over too few", eth(func(d *Interface) { d.RSSQueues = 1 }), Warn, "queues",
			"4 of 4 used, but packets are spread over the first 1", "ethtool -X eth0 equal 4"},
		{"more queues than CPUs", func(f *Facts) { f.CPUs = 2 }, Warn, "queues", "4 of 4 used, on 2 CPUs",
			"combined 2"},
		{"UDP by addresses", eth(func(d *Interface) {
			d.FlowHash = map[ethtool.Flow]ethtool.HashFields{ethtool.TCP4: byPorts, ethtool.UDP4: byAddresses,
				ethtool.TCP6: byPorts, ethtool.UDP6: byAddresses}
		}), Warn, "rss-hash", "UDP over IPv4, UDP over IPv6: the queue is chosen by addresses alone",
			"ethtool -N eth0 rx-flow-hash udp4 sdfn; ethtool -N eth0 rx-flow-hash udp6 sdfn"},
		{"IPv6 by addresses", eth(func(d *Interface) {
			d.FlowHash = map[ethtool.Flow]ethtool.HashFields{ethtool.TCP4: byPorts, ethtool.UDP4: byPorts,
				ethtool.TCP6: byAddresses, ethtool.UDP6: byPorts}
		}), Warn, "rss-hash", "TCP over IPv6: the queue is", "ethtool -N eth0 rx-flow-hash tcp6 sdfn"},
		{"an interface of fewer queues", second(1, 8), Warn, "workers",
			"1: each worker needs its own queue on every interface, and eth1 has 1 queue, where eth0 has 4",
			"ethtool -L eth1 combined 4"},
		{"an interface that can have few more", second(1, 2), Warn, "workers", "eth1 has 1 queue",
			"ethtool -L eth1 combined 2"},
		{"an interface that can have no more", second(2, 2), Warn, "workers", "eth1 has 2 queues",
			"driver mlx5_core supports no more"},
		{"an interface of fewer queues by configuration", func(f *Facts) {
			second(8, 8)(f)
			f.Config.Interfaces[1].Queues, f.Interfaces[1].RSSQueues, f.CPUs = 2, 2, 8
		}, Warn, "workers", "eth1 has 2 queues, where eth0 has 4", "set queues of eth1 to all"},
		{"attaching takes the link down", eth(func(d *Interface) { d.Driver = "igb" }), Warn, "xdp-attach",
			"takes the link down for a moment", "drain.handOver: true"},
		{"attaching takes the link down once", func(f *Facts) {
			f.Interfaces[0].Driver, f.Config.Drain.HandOver = "ixgbe", true
		}, Warn, "xdp-attach", "the next start takes it down", "restarts keep the program"},
		{"rings of more than all frames", eth(func(d *Interface) {
			d.Rings = ethtool.Rings{Rx: 4096, MaxRx: 4096,
				Tx: 1024, MaxTx: 4096}
		}), Warn, "rings",
			"rx 4096 of at most 4096, tx 1024 of at most 4096 descriptors; in zero-copy there are 4096 frames for " +
				"them", "set tuning.ringSize to 4096, or: ethtool -G eth0 rx 1024 tx 1024"},
		{"zero-copy wanted of an old kernel", func(f *Facts) {
			f.Kernel, f.Config.Interfaces[0].ZeroCopy = "6.12.30-amd64", config.ZeroCopyRequire
			f.Interfaces[0].Driver = "virtio_net"
		}, Fail, "driver-mode", "driver virtio_net has no zero-copy before Linux 6.13", "zeroCopy to auto"},
		{"zero-copy wanted of a virtio device without ACCESS_PLATFORM", func(f *Facts) {
			f.Config.Interfaces[0].ZeroCopy = config.ZeroCopyRequire
			f.Interfaces[0].Driver, f.Interfaces[0].NoAccessPlatform = "virtio_net", true
		}, Fail, "driver-mode", "without ACCESS_PLATFORM", "zeroCopy to auto"},
		{"CPU that is not ours", func(f *Facts) {
			f.ConfigErrors = config.Errors{{Path: "workerCPUs[1]",
				Problem: "this process may not run on CPU 9, choose among 0,1"}}
		}, Fail, "configuration", "may not run on CPU 9", "sluice run fails"},
		{"the daemon would not start",
			func(f *Facts) { f.StartError = errors.New("workers is 8, but an interface has only 4 queues") }, Fail,
			"start", "workers is 8", "ends with this"},
		{"the daemon would not start, which is said already", func(f *Facts) {
			f.Config.Interfaces[0].Queues, f.StartError = 8, errors.New("interface eth0: queues is 8, but it has 4")
		}, Fail, "queues", "8 configured, but it has 4", "ethtool -L eth0 combined 8"},
		{"the daemon would not start, which a daemon that runs has said", func(f *Facts) {
			f.StartError = errors.New("interface eth0: zeroCopy is require, but")
			f.Running = &status.StatusView{Ready: true,
				Conditions: []status.ConditionView{{Name: "zero-copy", Level: "fail", Detail: f.StartError.Error()}}}
		}, Fail, "zero-copy", "zeroCopy is require", "sluice status"},
		{"jumbo, and no native program for it", eth(func(d *Interface) { d.MTU = 9000 }), Warn, "mtu",
			"driver mlx5_core gives no packets in several buffers to a native XDP program, and MTU 9000 has some; " +
				"MTU 9000 takes 3 frames of 4096 bytes a packet", "ip link set eth0 mtu 3818"},
		{"jumbo where native is wanted", func(f *Facts) {
			f.Interfaces[0].MTU, f.Config.Interfaces[0].Mode = 9000,
				config.ModeNative
		}, Fail, "driver-mode",
			"mode is native, but driver mlx5_core gives no packets in several buffers", "set mode to auto or generic"},
		{"jumbo where zero-copy is wanted", func(f *Facts) {
			f.Interfaces[0].MTU,
				f.Config.Interfaces[0].ZeroCopy = 9000, config.ZeroCopyRequire
		}, Fail, "driver-mode",
			"zeroCopy is require, but MTU 9000 takes 3 frames", "set zeroCopy to auto"},
		{"MTU of no packet", func(f *Facts) { f.Interfaces[0].MTU, f.Config.Tuning.FrameSize = 40000, 2048 }, Fail,
			"mtu",
			"40000, but a packet in several frames of 2048 bytes has at most 30442",
			"tuning.frameSize to auto or 4096"},
		{"frames too small for zero-copy", func(f *Facts) {
			f.Interfaces[0].Driver, f.Interfaces[0].Program, f.Config.Tuning.FrameSize = "igb", "steer", 2048
		}, Warn, "driver-mode",
			"native, copy: in zero-copy driver igb delivers packets of up to 998 bytes whole into frames of 2048 " +
				"bytes, and the MTU is 1500", "tuning.frameSize to auto"},
		{"frames too small for required zero-copy", func(f *Facts) {
			f.Interfaces[0].Driver, f.Interfaces[0].Program = "igb", "steer"
			f.Config.Tuning.FrameSize, f.Config.Interfaces[0].ZeroCopy = 2048, config.ZeroCopyRequire
			f.StartError = errors.New("interface eth0: zeroCopy is require, but in zero-copy driver igb delivers " +
				"packets in pieces")
		}, Fail, "driver-mode", "zeroCopy is require, but in zero-copy driver igb", "tuning.frameSize to auto"},
		{"MTU too large for zero-copy", eth(func(d *Interface) { d.Driver, d.Program, d.MTU = "ixgbe", "steer", 3050 }),
			Warn, "driver-mode",
			"native, copy: in zero-copy driver ixgbe delivers packets of up to 3046 bytes whole into frames of 4096 " +
				"bytes, and the MTU is 3050", "ip link set eth0 mtu 3046"},
		{"MTU too large for required zero-copy", func(f *Facts) {
			f.Interfaces[0].Driver, f.Interfaces[0].Program, f.Interfaces[0].MTU = "ixgbe", "steer", 3050
			f.Config.Interfaces[0].ZeroCopy = config.ZeroCopyRequire
		}, Fail, "driver-mode", "zeroCopy is require, but in zero-copy driver ixgbe",
			"ip link set eth0 mtu 3046, or set zeroCopy to auto"},
		{"MTU too large for native mode", eth(func(d *Interface) { d.Driver, d.MTU = "igb", 3047 }), Warn,
			"driver-mode",
			"generic, copy: driver igb refuses a native XDP program at an MTU of more than 3046, and it is 3047",
			"ip link set eth0 mtu 3046"},
		{"MTU too large for native mode that is wanted", func(f *Facts) {
			f.Interfaces[0].Driver, f.Interfaces[0].Program, f.Interfaces[0].MTU, f.Config.Interfaces[0].Mode = "igc",
				"steer", 1501, config.ModeNative
		}, Fail, "driver-mode", "mode is native, but driver igc refuses", "ip link set eth0 mtu 1500"},
		{"generic for the MTU, and zero-copy wanted", func(f *Facts) {
			f.Interfaces[0].Driver, f.Interfaces[0].MTU, f.Config.Interfaces[0].ZeroCopy = "igc", 2000,
				config.ZeroCopyRequire
		}, Fail, "driver-mode", "zeroCopy is require, but driver igc refuses",
			"set zeroCopy to auto, or: ip link set eth0 mtu 1500"},
		{"jumbo, which a generic program takes without the link going down",
			eth(func(d *Interface) { d.Driver, d.MTU = "igb", 9000 }), Warn, "mtu",
			"driver igb refuses a native XDP program at an MTU of more than 3046, and it is 9000; MTU 9000 takes 3 " +
				"frames", "ip link set eth0 mtu 3046"},
		{"LRO", eth(func(d *Interface) { d.Features["rx-lro"] = true }), Warn, "offloads", "turn it off with XDP",
			"ethtool -K eth0 lro off"},
		{"LRO beside XDP", eth(func(d *Interface) { d.Features["rx-lro"], d.Program = true, "steer" }), Fail,
			"offloads", "rx-lro is on: it merges", "ethtool -K eth0 lro off"},
		{"hardware GRO", eth(func(d *Interface) { d.Features["rx-gro-hw"] = true }), Warn, "offloads",
			"rx-gro-hw is on", "rx-gro-hw off"},
		{"VLAN stripped",
			eth(func(d *Interface) { d.Features["rx-vlan-hw-parse"] = true; d.VLANs = []string{"eth0.7"} }), Warn,
			"offloads", "VLANs are on top (eth0.7): the NIC removes the tag", "ethtool -K eth0 rxvlan off"},
		{"veth, peer elsewhere", eth(func(d *Interface) { d.Kind = "veth" }), Warn, "offloads", "another namespace",
			"tx off"},
		{"veth, peer offloads",
			eth(
				func(d *Interface) {
					d.Kind, d.PeerFeatures = "veth", map[string]bool{"tx-checksum-ip-generic": true}
				},
			), Fail, "offloads", "unfinished checksums", "tx off"},
		{"veth, peer offloads SCTP",
			eth(func(d *Interface) { d.Kind = "veth"; d.PeerFeatures = map[string]bool{"tx-checksum-sctp": true} }),
			Warn, "offloads", "no CRC", "tx off"},
		{"strict rp_filter", func(f *Facts) { f.Sysctls["net.ipv4.conf.eth0.rp_filter"] = "1" }, Warn, "rp_filter",
			"strict", "rp_filter=2"},
		{"rp_filter unknown", func(f *Facts) {
			clear(f.Sysctls)
			f.Sysctls["net.ipv4.ip_forward"], f.Sysctls["net.ipv6.conf.all.forwarding"] = "1", "1"
		}, Warn, "rp_filter", "cannot be read", "0 or 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := healthy()
			c.change(f)
			var bad []Finding
			for _, finding := range Examine(f) {
				if finding.Level != OK {
					bad = append(bad, finding)
				}
			}
			if len(bad) != 1 {
				t.Fatalf("got %d findings: %+v", len(bad), bad)
			}
			got := bad[0]
			if got.Level != c.level || got.Check != c.check || !strings.Contains(got.Found, c.found) ||
				!strings.Contains(got.Do, c.what) {
				t.Errorf("got  %+v\nwant %s %s %q, to do %q", got, c.level, c.check, c.found, c.what)
			}
			if Failed(bad) != (c.level == Fail) {
				t.Error("Failed disagrees")
			}
		})
	}
}

// TestBoundaryValuesAreNoFindings: a value exactly at its limit is no finding.
func TestBoundaryValuesAreNoFindings(t *testing.T) {
	for name, change := range map[string]func(*Facts){
		"first kernel":          func(f *Facts) { f.Kernel = "6.12.0" },
		"next major":            func(f *Facts) { f.Kernel = "7.0.0" },
		"SYS_ADMIN is BPF":      func(f *Facts) { f.Caps &^= 1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON },
		"memlock by capability": func(f *Facts) { f.Memlock = 0 },
		"memlock by limit":      func(f *Facts) { f.Caps &^= 1 << unix.CAP_IPC_LOCK; f.Memlock = 128 << 20 },
		"memlock by limit, one mode": func(f *Facts) {
			f.Caps &^= 1 << unix.CAP_IPC_LOCK
			f.Memlock, f.Config.HostLink.Addresses = 32<<20, nil
		},
		"largest MTU":     func(f *Facts) { f.Interfaces[0].MTU = 1770 },
		"our own program": func(f *Facts) { f.Interfaces[0].Program = "steer" },
		"our own metrics port": func(f *Facts) {
			f.Running = &status.StatusView{Ready: true}
			f.Listeners = []Listener{listener("tcp", "[::]:9470")}
		},
		"udp on the metrics port": func(f *Facts) { f.Listeners = []Listener{listener("udp", "0.0.0.0:9470")} },
		"bpffs to be mounted":     func(f *Facts) { f.BPFFS = false },
		"objects of the API server": func(f *Facts) {
			f.Manifests, f.Config.Manifests.Directory, f.Config.Kubernetes.Enabled = false, "", true
		},
		"a daemon with a service account": func(f *Facts) {
			f.Config.Kubernetes.Enabled, f.API, f.Running = true, errors.New("this is not a pod"),
				&status.StatusView{Ready: true}
		},
		"stale socket":          func(f *Facts) { f.Socket = SocketStale },
		"no huge pages":         func(f *Facts) { f.HugePages = 0 },
		"VLANs with their tags": func(f *Facts) { f.Interfaces[0].VLANs = []string{"eth0.7"} },
		"veth with tx off": func(f *Facts) {
			f.Interfaces[0].Kind, f.Interfaces[0].PeerFeatures = "veth", map[string]bool{}
		},
		"no host link, no forward": func(f *Facts) { f.Config.HostLink.Addresses = nil; clear(f.Sysctls) },
		"no zero-copy":             func(f *Facts) { f.Interfaces[0].XDPFeatures &^= netdev.ZeroCopy },
		"one queue, with any hash": func(f *Facts) {
			f.Interfaces[0].Queues, f.Interfaces[0].RSSQueues = 1, 1
			f.Interfaces[0].FlowHash = map[ethtool.Flow]ethtool.HashFields{ethtool.UDP4: byAddresses}
		},
		"SCTP by addresses": func(f *Facts) {
			f.Interfaces[0].FlowHash = map[ethtool.Flow]ethtool.HashFields{ethtool.TCP4: byPorts, ethtool.UDP4: byPorts,
				ethtool.SCTP4: byAddresses}
		},
		"a hash of nothing": func(f *Facts) {
			f.Interfaces[0].FlowHash = map[ethtool.Flow]ethtool.HashFields{ethtool.UDP4: 0}
		},
		"UDP by addresses, one worker": func(f *Facts) {
			f.Config.Workers, f.Interfaces[0].FlowHash = 1,
				map[ethtool.Flow]ethtool.HashFields{ethtool.UDP4: byAddresses}
		},
		"attached already":         func(f *Facts) { f.Interfaces[0].Driver, f.Interfaces[0].Program = "igb", "steer" },
		"rings as large as frames": func(f *Facts) { f.Interfaces[0].Rings = ethtool.Rings{Rx: 2048, Tx: 2048} },
		"large rings in copy mode": func(f *Facts) {
			f.Config.Interfaces[0].ZeroCopy, f.Interfaces[0].Rings = config.ZeroCopyNever,
				ethtool.Rings{Rx: 8192, Tx: 8192}
		},
		"virtio, new enough":   func(f *Facts) { f.Kernel, f.Interfaces[0].Driver = "6.13.0", "virtio_net" },
		"GRO below native XDP": func(f *Facts) { f.Interfaces[0].Below = []Lower{{"p0", true}} },
		"configuration errors of a daemon that runs": func(f *Facts) {
			f.Running, f.ConfigErrors = &status.StatusView{Ready: true},
				config.Errors{{Path: "workerCPUs[0]", Problem: "x"}}
		},
		"a program that only the daemon can name": func(f *Facts) {
			f.Running = &status.StatusView{Ready: true,
				Interfaces: []status.InterfaceView{{Name: "eth0", Mode: "native"}}}
			f.Interfaces[0].Program = "program 12"
		},
		"frames of 2,048 bytes without zero-copy": func(f *Facts) {
			f.Interfaces[0].Driver, f.Interfaces[0].Program, f.Kernel = "igb", "steer", "6.12.30-amd64"
			f.Interfaces[0].XDPFeatures &^= netdev.ZeroCopy
			f.Caps &^= 1 << unix.CAP_IPC_LOCK
			f.Memlock = 64 << 20 // twice as much would be needed
		},
		"bond member": func(f *Facts) { f.Interfaces[0].Master = "bond" },
	} {
		t.Run(name, func(t *testing.T) {
			f := healthy()
			change(f)
			for _, finding := range Examine(f) {
				if finding.Level != OK {
					t.Errorf("%+v", finding)
				}
			}
		})
	}
}

// TestOtherStartError: what the daemon would refuse is reported beside a finding about an interface
// that it does not name.
func TestOtherStartError(t *testing.T) {
	for _, refusal := range []string{"workers is 8, but an interface has only 4 queues", "interface eth00: queues is " +
		"8, but it has 4"} {
		f := healthy()
		f.Config.Interfaces[0].Mode, f.Interfaces[0].XDPFeatures = config.ModeNative, netdev.Basic
		f.StartError = errors.New(refusal)
		var failed []string
		for _, finding := range Examine(f) {
			if finding.Level == Fail {
				failed = append(failed, finding.Check)
			}
		}
		if !slices.Equal(failed, []string{"driver-mode", "start"}) {
			t.Errorf("%s: %v", refusal, failed)
		}
	}
}

// TestBesideDaemon: what a configuration is on this host does not depend on the daemon that runs,
// which has frames and modes by another; doctor goes by the daemon.
func TestBesideDaemon(t *testing.T) {
	f := healthy()
	f.Interfaces[0].MTU, f.Interfaces[0].Program = 3000, "program 12"
	f.Running = &status.StatusView{
		Ready: true, Frames: status.FramesView{Bytes: 2048, Reason: "tuning.frameSize says so"},
		Interfaces: []status.InterfaceView{{Name: "eth0", Mode: "generic", Reason: "configured",
			Queues: []status.QueueView{{Bound: true, Reason: "zeroCopy is never"}}}},
	}
	found := func(list []Finding) map[string]string {
		m := map[string]string{}
		for _, finding := range list {
			m[finding.Check] = finding.Found
		}
		return m
	}
	for _, c := range []struct {
		who  string
		got  map[string]string
		want map[string]string
	}{
		{"config check", found(ExamineInterfaces(f)), map[string]string{
			"mtu":         "3000 fits frames of 4096 bytes",
			"driver-mode": "native, zero-copy: driver mlx5_core reports support",
			"xdp-program": "program 12, which the daemon reports as its own"}},
		{"doctor", found(Examine(f)), map[string]string{
			"mtu": "MTU 3000 takes 2 frames of 2048 bytes", "driver-mode": "generic: configured",
			"frames": "2048 bytes: tuning.frameSize says so"}},
	} {
		for check, want := range c.want {
			if !strings.HasPrefix(c.got[check], want) {
				t.Errorf("%s: %s: %q, want %q", c.who, check, c.got[check], want)
			}
		}
	}
}

// TestVLANConfigured: a VLAN device in the place of its NIC is slow, and with GRO below it does not
// work.
func TestVLANConfigured(t *testing.T) {
	for _, gro := range []bool{true, false} {
		f := healthy()
		f.Config.Interfaces[0].Name = "left.5"
		f.Sysctls["net.ipv4.conf.left.5.rp_filter"] = "0"
		f.Interfaces[0] = Interface{
			Name: "left.5", Up: true, Kind: "vlan", Driver: "802.1Q VLAN Support", MTU: 1500, Queues: 1, RSSQueues: 1,
			XDPKnown: true,
			Below:    []Lower{{"left", gro}},
		}
		got := map[string]string{}
		for _, finding := range ExamineInterfaces(f) {
			if finding.Level != OK {
				got[string(finding.Level)+" "+finding.Check] = finding.Found + " -> " + finding.Do
			}
		}
		want := map[string]string{"warn driver-mode": "no native XDP", "warn device": "configure the devices under it"}
		if gro {
			want["fail offloads"] = "rx-gro is on at left under it"
		}
		if len(got) != len(want) {
			t.Errorf("GRO %v: %v", gro, got)
		}
		for what, text := range want {
			if !strings.Contains(got[what], text) {
				t.Errorf("GRO %v: %s: %q, want %q", gro, what, got[what], text)
			}
		}
		if do := got["fail offloads"]; gro &&
			!strings.Contains(do, "configure left instead of left.5, or: ethtool -K left gro off") {
			t.Errorf("to do: %s", do)
		}
	}
}

// TestReasonForCopyMode: the lack of zero-copy is reported with its reason, even if nothing is
// wrong.
func TestReasonForCopyMode(t *testing.T) {
	for _, c := range []struct {
		driver, kernel string
		bit, plain     bool
		want           string
	}{
		{"igb", "7.3.4+deb14-amd64", true, false, "native, zero-copy: driver igb reports support"},
		{"igb", "6.12.30-amd64", false, false, "native, copy: driver igb has no zero-copy before Linux 6.14"},
		{"igb", "6.14.0", false, false, "native, copy: driver igb has no zero-copy"},
		{"virtio_net", "6.12.30", true, false, "native, copy: driver virtio_net has no zero-copy before Linux 6.13"},
		{"virtio_net", "7.3.4", true, true, "native, copy: this virtio device is without ACCESS_PLATFORM"},
		{"virtio_net", "7.3.4", true, false, "native, zero-copy"},
		{"vmxnet3", "7.3.4", false, false, "generic, copy: driver vmxnet3 runs no native XDP"},
	} {
		f := healthy()
		d := &f.Interfaces[0]
		f.Kernel, d.Driver, d.NoAccessPlatform = c.kernel, c.driver, c.plain
		if !c.bit {
			d.XDPFeatures &^= netdev.ZeroCopy
		}
		for _, finding := range ExamineInterfaces(f) {
			if finding.Check != "driver-mode" {
				continue
			}
			if !strings.HasPrefix(finding.Found, c.want) {
				t.Errorf("%s on %s: %s, want %s", c.driver, c.kernel, finding.Found, c.want)
			}
			slow := strings.Contains(finding.Found, "bulk TCP") || strings.Contains(finding.Do, "fraction of the speed")
			if slow == strings.HasPrefix(c.want, "native, zero-copy") {
				t.Errorf("%s on %s: %s, %s: only copy mode is slower", c.driver, c.kernel, finding.Found, finding.Do)
			}
		}
	}
}

// TestCopyModeOfDaemon: what the daemon reports about its sockets decides whether bulk TCP is slow.
func TestCopyModeOfDaemon(t *testing.T) {
	f := healthy()
	f.Running = &status.StatusView{Ready: true, Interfaces: []status.InterfaceView{{Name: "eth0", Mode: "native",
		Queues: []status.QueueView{{Queue: 0, Bound: true, ZeroCopy: true}, {Queue: 1, Bound: true}}}}}
	got := map[string]string{}
	for _, finding := range Examine(f) {
		if finding.Check == "driver-mode" && finding.Level == OK {
			got[finding.Subject] = finding.Found
		}
	}
	want := map[string]string{"eth0 queue 0": "native, zero-copy",
		"eth0 queue 1": "native, copy; bulk TCP gets a fraction of the kernel's rate"}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestUnfinishedChecksums: the daemon's counter, and the interfaces that have senders on this
// machine.
func TestUnfinishedChecksums(t *testing.T) {
	for name, c := range map[string]struct {
		workers []status.WorkerView
		kind    string
		subject string
	}{
		"none":               {[]status.WorkerView{{WrongChecksums: 7}}, "veth", ""},
		"of two workers":     {[]status.WorkerView{{UnfinishedChecksums: 2}, {UnfinishedChecksums: 3}}, "veth", "eth0"},
		"hardware, at least": {[]status.WorkerView{{UnfinishedChecksums: 5}}, "device", "eth0"},
	} {
		f := healthy()
		f.Running, f.Workers = &status.StatusView{Ready: true}, c.workers
		f.Running.Conditions = []status.ConditionView{status.Warning("checksums", "7 of them")} // of the status alone
		f.Interfaces[0].Kind, f.Interfaces[0].PeerFeatures = c.kind, map[string]bool{}
		subject := ""
		for _, finding := range Examine(f) {
			if finding.Check != "checksums" {
				continue
			}
			subject = finding.Subject
			if finding.Level != Warn || !strings.HasPrefix(finding.Found, "5 ") ||
				!strings.Contains(finding.Do, "ethtool -K DEV tx off") {
				t.Errorf("%s: %+v", name, finding)
			}
		}
		if subject != c.subject {
			t.Errorf("%s: about %q, want %q", name, subject, c.subject)
		}
	}
}

// TestTunnel: a node whose tunnel port is closed is a failure, a narrow way to a node a warning.
func TestTunnel(t *testing.T) {
	four, six := netip.MustParseAddr("10.0.1.21"), netip.MustParseAddr("2001:db8:1::21")
	for _, tt := range []struct {
		name  string
		nodes []TunnelNode
		want  []string // level and part of what was found
	}{
		{"no direct Service", nil, nil},
		{"ready", []TunnelNode{{four, false, 1550, 0}, {six, false, 1570, 0}, {four.Next(), false, 0, 0}},
			[]string{"ok none reports"}},
		{"closed", []TunnelNode{{four, false, 1550, 0}, {six, true, 1570, 0}},
			[]string{"fail UDP port 4789 is closed"}},
		{"narrow", []TunnelNode{{four, false, 1549, 0}}, []string{"warn more than 1499 bytes"}},
		{"narrow, IPv6", []TunnelNode{{six, false, 1569, 0}}, []string{"warn more than 1499 bytes"}},
		{"both", []TunnelNode{{four, true, 1500, 0}, {six, false, 1500, 0}}, []string{"fail is closed",
			"warn towards 2001:db8:1::21 is 1500: clients' packets of more than 1430 bytes"}},
		{"no answers", []TunnelNode{{four, false, 1550, 12}, {six, false, 1570, 0}},
			[]string{"warn none has got an answer"}},
		{"no answers, as the port is closed", []TunnelNode{{four, true, 1550, 12}}, []string{"fail is closed"}},
	} {
		f := healthy()
		f.Config.DirectReturn.VNI, f.Tunnel = 7, tt.nodes
		var got []string
		for _, x := range Examine(f) {
			if x.Check == "tunnel" {
				got = append(got, string(x.Level)+" "+x.Found)
			}
		}
		match := len(got) == len(tt.want)
		for i := range got {
			level, part, _ := strings.Cut(tt.want[min(i, len(tt.want)-1)], " ")
			match = match && strings.HasPrefix(got[i], level+" ") && strings.Contains(got[i], part)
		}
		if !match {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
