package statustest

import (
	"net/netip"
	"time"

	"sluice.dev/sluice/serve/status"
)

func sampleServices() []status.ServiceView {
	return []status.ServiceView{
		{
			Namespace: "default", Name: "web", PortName: "http", Protocol: "TCP", Port: 80,
			Frontends: []status.FrontendView{
				{Address: "192.0.2.10:80", Kind: "LoadBalancer", Usable: 2, Slots: 251},
				{Address: "[2001:db8::10]:80", Kind: "LoadBalancer", Usable: 1, Slots: 251},
				{Address: "0.0.0.0:30080", Kind: "NodePort", Usable: 2, Slots: 251},
			},
			Scheduler: "maglev", AffinitySeconds: 10800, ExternalPolicy: "Cluster", InternalPolicy: "Cluster",
			Topology4: "zone",
			Limits:    &status.LimitsView{SourceConnections: 100, Connections: 5000, NewConnections: 200, Open: 12},
			Backends:  3, Usable: 2,
			Traffic: status.Traffic{Flows: 12, ToBackend: 3400, ToBackendBytes: 1 << 20, ToClient: 5600,
				ToClientBytes: 3 << 30},
		},
		{
			Namespace: "kube-system", Name: "dns", Protocol: "UDP", Port: 53,
			Frontends: []status.FrontendView{{
				Address: "192.0.2.53:53", Kind: "ExternalIP", KeepClient: true, Empty: "drop",
				Pods: &status.RuleView{KeepClient: true, Usable: 1}, SourceRanges: []string{"198.51.100.0/24"},
			}},
			Scheduler: "wlc", ExternalPolicy: "Local", InternalPolicy: "Cluster",
		},
	}
}

func sampleBackends() []status.BackendView {
	web := func(addr, state, hop string, t status.Traffic) status.BackendView {
		return status.BackendView{
			Address: netip.MustParseAddrPort(addr), Protocol: "TCP", Namespace: "default", Service: "web",
			PortName: "http", Port: 80, State: state, NextHop: hop, Traffic: t,
		}
	}
	list := []status.BackendView{
		web("10.1.0.11:8080", "ready", "eth1 02:00:00:00:00:11", status.Traffic{Flows: 8, ToBackend: 2000,
			ToBackendBytes: 700000, ToClient: 3000, ToClientBytes: 2 << 30}),
		web("10.1.0.12:8080", "terminating", "", status.Traffic{Flows: 4, ToBackend: 1400, ToBackendBytes: 348576,
			ToClient: 2600, ToClientBytes: 1 << 30}),
		web("[2001:db8:1::11]:8080", "ready", "host link", status.Traffic{}),
	}
	list[2].Local = true
	list[0].Weight, list[0].Hints, list[0].NewFlows = 1, []string{"zone"}, true
	list[1].Weight, list[1].Why = 3, "terminating, and others are ready"
	list[2].NewFlows, list[2].PodsOnly = true, true
	list[2].Weight = 1
	at := time.Date(2026, 3, 1, 9, 12, 44, 0, time.UTC)
	list[0].Health = &status.CheckView{Check: "http /healthz", Since: at.Add(-time.Hour), Last: "status 200 in 1.2ms",
		At: at, SlowStart: 30}
	list[2].Health = &status.CheckView{Check: "tcp", Passive: true, Down: true, Since: at.Add(-time.Minute),
		Last: "no answer in 500ms", At: at}
	list[0].Connections, list[1].Connections = 2, 1
	return list
}

func sampleTimes() (all status.AllTimesView) {
	service := status.ServiceTimesView{
		Namespace: "default", Service: "web", PortName: "http", Protocol: "TCP", Port: 80,
		TimesView: status.TimesView{
			Handshake: status.HistogramView{Count: 7, SumMicros: 1_004_100, MedianMicros: 448, P99Micros: 1_046_000,
				Buckets: []status.BucketView{{FromMicros: 320, ToMicros: 384, Count: 2},
					{FromMicros: 448, ToMicros: 512, Count: 4}, {FromMicros: 917504, ToMicros: 1048576, Count: 1}}},
			Answer: status.HistogramView{Count: 2, SumMicros: 70_000_100, MedianMicros: 128, P99Micros: 67_108_864,
				Buckets: []status.BucketView{{FromMicros: 96, ToMicros: 112, Count: 1},
					{FromMicros: 67108864, Count: 1}}},
			RepeatedSYNs: 1, RepeatedSYNsAfterAnswer: 2, Refused: 3, ResetByBackend: 4, ResetByClient: 5,
		},
	}
	all.Services = []status.ServiceTimesView{service,
		{Namespace: "kube-system", Service: "dns", Protocol: "UDP", Port: 53}}
	all.Backends = []status.BackendTimesView{
		{Address: netip.MustParseAddrPort("10.1.0.11:8080"), ServiceTimesView: service},
		{Address: netip.MustParseAddrPort("10.1.0.12:8080"), ServiceTimesView: service},
	}
	all.Backends[1].TimesView = status.TimesView{}
	return all
}

func sampleFlows() []status.FlowView {
	flow := func(protocol, state, client, vip, snat, backend, service string, idle, expires int64) status.FlowView {
		return status.FlowView{
			Protocol: protocol, State: state, Client: netip.MustParseAddrPort(client),
			VIP:  netip.MustParseAddrPort(vip),
			SNAT: netip.MustParseAddrPort(snat), Backend: netip.MustParseAddrPort(backend), Service: service,
			IdleSeconds: idle, ExpiresSeconds: expires,
		}
	}
	list := []status.FlowView{
		flow("TCP", "established", "198.51.100.7:51000", "192.0.2.10:80", "10.1.0.2:16400", "10.1.0.11:8080",
			"default/web:http", 3, 7437),
		flow("TCP", "fin_wait", "198.51.100.8:51001", "192.0.2.10:80", "10.1.0.2:16401", "10.1.0.12:8080",
			"default/web:http", 60, 240),
		flow("TCP", "established", "[2001:db8:f::7]:51000", "[2001:db8::10]:80", "[2001:db8:1::2]:16400",
			"[2001:db8:1::11]:8080", "default/web:http", 0, 7440),
		flow("UDP", "udp_replied", "203.0.113.9:5353", "192.0.2.53:53", "203.0.113.9:5353", "10.1.0.53:53",
			"kube-system/dns", 1, 299),
	}
	for i, group := range []string{"protected", "pending", "copy", "client_address"} {
		list[i].Group = group
	}
	return list
}

func sampleStats() status.StatsView {
	worker := func(i int, rx uint64, drops map[string]uint64) status.WorkerView {
		w := status.WorkerView{
			Worker: i, CPU: i + 2, Rx: rx, RxBytes: rx * 100, Tx: rx - 20, TxBytes: (rx - 20) * 100, Generated: 5,
			Returned: 7,
			Held:     2, KernelRx: 3, FlowsCreated: 6, FlowsRetried: 1, EchoReplies: 4, ProxyHeaders: 5, ICMPLimited: 1,
			Resets: 2, ResetsLimited: 1,
			WrongChecksums: 4, UnfinishedChecksums: 2, Batches: rx / 10, Polls: 40,
			BusyNanos: 250_000_000, IdleNanos: 750_000_000, Load: 0.25, Generation: 17,
			PulseNanos: 12_000_000, Drops: drops,
			FrameLaw: status.FrameLaw{Total: 4096, Free: 2046, Links: 2048, Held: 2, Holds: true},
		}
		for _, n := range drops {
			w.Dropped += n
		}
		w.PacketLaw = status.PacketLaw{In: w.Rx + w.Generated, Accounted: w.Tx + w.Returned + w.Dropped +
			uint64(w.Held)}
		w.PacketLaw.Holds = w.PacketLaw.In == w.PacketLaw.Accounted
		return w
	}
	st := status.StatsView{
		Workers: []status.WorkerView{
			worker(0, 5000, map[string]uint64{"no_flow": 9, "ttl_exceeded": 7}),
			worker(1, 4000, map[string]uint64{"no_flow": 15}),
		},
		Flows: []status.FlowTableView{
			{Family: "ipv4", Capacity: 1048576, Used: 3, HalfOpen: 0, States: map[string]uint64{"established": 1,
				"fin_wait": 1, "udp_replied": 1, "syn_sent": 0},
				Counters: map[string]uint64{"created": 43}},
			{Family: "ipv6", Capacity: 262144, Used: 2, HalfOpen: 1, States: map[string]uint64{"established": 1,
				"syn_sent": 1}, Counters: map[string]uint64{"created": 2}},
		},
		FlowEvents: map[string]uint64{"shed_expired": 40, "refused_table_full": 0},
		Steering:   map[string]uint64{"redirected": 9000, "passed": 123},
		Queues: []status.QueueStatsView{{Interface: "eth0", Queue: 0, RxDropped: 1},
			{Interface: "eth0", Queue: 1, RxRingFull: 2}},
		Snapshot: sampleSnapshot(),
	}
	// The second worker sleeps.
	st.Workers[1].Generation, st.Workers[1].Asleep = 0, true
	return st
}

func samplePorts() (list []status.SourcePortsView) {
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, protocol := range []string{"TCP", "UDP", "SCTP"} {
			list = append(list, status.SourcePortsView{Family: family, Protocol: protocol})
		}
	}
	tcp, udp := &list[0], &list[1]
	tcp.MostUsed = status.BackendPortsView{Backend: netip.MustParseAddrPort("10.1.0.11:8080"),
		Source: netip.MustParseAddr("10.1.0.2"), Ports: 16000, Used: 12000, Unavailable: 4000}
	tcp.LeastAvailable = tcp.MostUsed
	udp.MostUsed = status.BackendPortsView{Backend: netip.MustParseAddrPort("10.1.0.53:53"),
		Source: netip.MustParseAddr("10.1.0.2"), Ports: 16000, Used: 16000, Unavailable: 2000}
	udp.LeastAvailable = status.BackendPortsView{Backend: netip.MustParseAddrPort("10.1.0.54:53"),
		Source: netip.MustParseAddr("10.1.0.2"), Ports: 16000, Used: 10000, Unavailable: 10000}
	return list
}

func sampleSnapshot() status.SnapshotView {
	return status.SnapshotView{
		Published: 17, PublishedAt: Start().Add(time.Hour), Steered: 17, Seen: 17, Services: 2, Frontends: 4,
		Backends: 3,
	}
}

func sampleStatus() status.StatusView {
	return status.StatusView{
		Frames: status.FramesView{Bytes: 2048, Reason: "every MTU is at most 1770"},
		Places: []status.PlaceView{
			{CPU: 3, Workers: []int{0, 1}, Why: "apart: packets arrive on CPU 0, 2",
				Waiting: "polls for 1ms before it sleeps (dedicated, and no packets arrive here)", ShortSlice: true,
				WaitedPercent: 1.25},
			{CPU: -1, Workers: []int{2}, Why: "it is not known which CPUs may be used",
				Waiting: "polls for 20µs before it sleeps, but no longer than it worked on packets (shared)",
				Arrive:  true},
		},
		Node: "gw-1", PID: 4242, StartedAt: Start(), Ready: true, Applied: true,
		Version: status.Build{Version: "v0.1.0", Revision: status.Revision, Commit: "0123456789abcdef", Go: "go1.26.8",
			Platform: "linux/amd64"},
		Config: status.ConfigView{File: "/etc/sluice/gateway.yaml", LoadedAt: Start(),
			NeedRestart: []string{"tuning.ringSize: 2048 stays until the daemon restarts; the file says 1024"}},
		Snapshot: sampleSnapshot(),
		Sources: []status.SourceView{
			{Name: "manifests:/etc/sluice/manifests", Synced: true, Read: 9, Applied: 9, ReadAt: Start().Add(time.Hour),
				Objects: 12},
		},
		Problems: []status.ProblemView{
			{Source: "manifests:/etc/sluice/manifests", Object: "Service default/old (old.yaml)",
				Field:   "spec.sessionAffinity",
				Message: "ClientIP is not served yet; remove it to have the Service served", Since: Start()},
		},
		Group: &status.GroupView{
			Members: []status.GroupMemberView{
				{Name: "gw-2", Address: netip.MustParseAddrPort("192.0.2.2:9473"), HasOurFlows: true,
					WeHaveItsFlows: true, Copies: 1200, Lag: 3},
				{Name: "gw-3", Address: netip.MustParseAddrPort("192.0.2.3:9473"), Copies: 40,
					Error: "stream with gw-3: connection refused"},
			},
			Sources: []status.GroupSourceView{{Address: netip.MustParseAddr("198.51.100.1"), State: "open"},
				{Address: netip.MustParseAddr("198.51.100.2"), State: "spare"}},
			Complete: true, HeldPorts: 7, Flows: map[string]uint64{"protected": 990, "late": 10, "no_member": 2},
			AnswerWait: status.HistogramView{Count: 2, SumMicros: 1650,
				MedianMicros: 150, P99Micros: 1500, Buckets: []status.BucketView{
					{FromMicros: 128, ToMicros: 160, Count: 1}, {FromMicros: 1280, ToMicros: 1536, Count: 1}}},
		},
		Interfaces: []status.InterfaceView{
			{Name: "eth0", Driver: "veth", Up: true, MTU: 1500, Mode: "native", Reason: "auto: the driver takes it",
				Queues: []status.QueueView{
					{Queue: 0, Worker: 0, Bound: true, Reason: "driver veth has no zero-copy", TxBudget: 2048,
						BusyPollMicros: 20, BusyPollBudget: 64},
					{Queue: 1, Worker: 1, Bound: true, Reason: "driver veth has no zero-copy", TxBudget: 32,
						Refused: []string{"a system call sends 32 packets, not 2048: this kernel has no " +
							"XDP_MAX_TX_SKB_BUDGET (Linux 6.17)"}},
				}, Settings: map[string]string{"gro_flush_timeout": "50000", "napi_defer_hard_irqs": "2"},
				Refused: []string{"threaded of eth0 cannot be set to 1: the driver has no NAPI to do it with"}},
			{Name: "eth1", Driver: "veth", MTU: 1500, Mode: "generic", Reason: "configured", Queues: []status.QueueView{
				{Queue: 0, Worker: 0, Reason: "device or resource busy: another process holds the queue"},
			}},
		},
		Conditions: []status.ConditionView{
			{Name: "metrics-listener", Level: "warn",
				Detail: "no metrics: listen tcp :9470: bind: address already in use", Since: Start()},
		},
	}
}
