package faults

// Fault is a row of the plan.
type Fault struct {
	Name, How, Target string
	Tests             []Test
	Figure            string // printed by the tests, on the machine of docs/guarantees.md
	Without           string // the part that is not injected, and why; empty if none
}

// Test names test functions of a package of this tree.
type Test struct {
	Package string // below the module's root
	Names   []string
}

func e2e(names ...string) Test { return Test{"test/e2e", names} }

const (
	ports = "gateway/ports"
	xsk   = "fastpath/xsk"
)

// Plan is the fault plan, in the order of the page.
var Plan = []Fault{
	{
		Name: "a clean stop, and the next process takes over", How: "SIGTERM with `drain.handOver`, then a start; or " +
			"with a second process that waits",
		Target: "0 connections broken",
		Tests:  []Test{e2e("TestHandOver", "TestSecondProcessTakesOver", "TestFlowTableResized")},
		Figure: "0 of 200 broken",
	}, {
		Name: "a clean stop, and none takes over", How: "SIGTERM", Target: "health says no, flows are served for " +
			"`drain.timeout`, and nothing is left on the node",
		Tests: []Test{e2e("TestDrainWaitsForConnections", "TestHealthWhileDraining", "TestCleanup")}, Figure: "held",
	}, {
		Name: "the process dies", How: "SIGKILL at random moments under load, also while it starts",
		Target: "0 connections broken, no flow half written, forwarding again within a second",
		Tests:  []Test{e2e("TestKillAtRandom", "TestKill"), {"flowtable", []string{"TestRecoverMidOperation"}}},
		Figure: "200 deaths: 0 of 500 broken, 0 flows torn; forwarding again after 0.57 s (median), 2.6 s at most, " +
			"beside a soak",
	}, {
		Name: "a panic", How: "SIGABRT, by which the Go runtime ends a process as by a panic; panics of decoders in " +
			"the control loop",
		Target: "as above; an object whose decoding panics is a problem of that object",
		Tests: []Test{e2e("TestKillAtRandom"), {"control/k8s", []string{"TestDecodingThatPanics",
			"TestPanicIsAProblemOfTheObject"}}},
		Figure: "0 of 500 broken",
		Without: "a panic in a worker: the product has no hook that makes one, and 10,000,000 mutated packets " +
			"(`make -C test fuzz-packets`) found none. The packet is not dumped, and nothing drops a packet that has killed " +
			"the process before",
	}, {
		Name: "the control loop stalls", How: "a walk over flows that takes long, full kernel maps, a table that " +
			"differs from a full rebuild",
		Target: "workers do not wait, other changes are not held up, the table is repaired",
		Tests: []Test{{"control/loop", []string{"TestWalkDoesNotBlockTheLoop", "TestFullKernelMapsDelayNothingElse",
			"TestLoopChecksAndRepairs"}}},
		Figure: "held",
	}, {
		Name: "a goroutine of gateway, announcer or controller stands still", How: "programs built so that a test " +
			"can stop each loop with a heartbeat, and goroutines without one (`launch.BuildWithStops`); SIGSTOP; no " +
			"descriptor left; a full state directory; an API server that hangs or is gone",
		Target: "all goes on, or probes, status, pulse or routes say no",
		Tests:  []Test{{"test/announce", []string{"TestFaultCampaign"}}},
		Figure: "[below](#the-campaign-over-all-three-programs)",
		Without: "goroutines of the BGP library and of client-go, whose source is not in this tree; the reader of " +
			"`--config`, which does not run beside an API server; the standby process of a hand-over",
	}, {
		Name: "memory runs out", How: "tables and limits that are full; locked memory that is refused",
		Target: "what does not fit is refused, what was there is served",
		Tests:  []Test{{xsk, []string{"TestMemlock"}}, {ports, []string{"TestMTUWithoutMemlock"}}},
		Figure: "held",
		Without: "an OOM kill by a control group: no test sets a limit. It ends the process by SIGKILL, as the " +
			"third row does",
	}, {
		Name: "the process stands still", How: "SIGSTOP, SIGCONT after 2 s, three times",
		Target: "0 connections broken, 0 flows expired for it",
		Tests:  []Test{e2e("TestStopped"), {"fastpath", []string{"TestLateExpiryIsBounded"}}},
		Figure: "0 of 200 broken; 100 new connections served 0.09 to 0.17 s after SIGCONT",
	}, {
		Name: "one worker stalls", How: "a worker that does not return from its pass",
		Target:  "it is reported",
		Tests:   []Test{{"gateway/workers", []string{"TestStalled"}}, {xsk, []string{"TestStall"}}},
		Figure:  "held",
		Without: "a stalled worker beside one that forwards real traffic: the product has no hook that stalls one",
	}, {
		Name: "rings run empty or full, the kernel does not send", How: "small rings, completions that are not read",
		Target: "the frame law holds, traffic goes on when they are served again",
		Tests: []Test{{xsk, []string{"TestFillStarvation", "TestReceiveRingFull", "TestFlushDrainsCompletions",
			"TestFrameLawAtRandom"}}, {"fastpath", []string{"TestFullRing"}}},
		Figure: "held",
	}, {
		Name: "links flap", How: "links of both sides down for 1 to 500 ms, at random",
		Target: "0 connections broken, both laws exact",
		Tests:  []Test{e2e("TestLinkFlaps"), {xsk, []string{"TestDownUp"}}},
		Figure: "400 flaps, 100 s down in all: 0 of 100 broken",
	}, {
		Name: "a device is deleted and created again", How: "`ip link del`, `ip link add`", Target: "open again within " +
			"2 s, the others forward",
		Tests: []Test{e2e("TestDeviceDeletedAndCreated", "TestHostLinkDeleted", "TestDaemonIsConfined"),
			{xsk, []string{"TestDeviceDeleted"}}},
		Figure: "open again after 0.55 s",
	}, {
		Name: "the MTU changes", How: "`ip link set mtu`: 1400, 1500, 9000, 1300", Target: "served with each",
		Tests:  []Test{e2e("TestMTUChange", "TestPathMTU"), {ports, []string{"TestMTURaised", "TestMTULowered"}}},
		Figure: "held",
	}, {
		Name: "a neighbour's MAC address changes, and nothing announces it", How: "the same, with UDP flows of both " +
			"families open",
		Target: "the first answer within 10 s; the kernel's own forwarding took 4 s to 37 s for 30 neighbours",
		Tests:  []Test{e2e("TestSilentMACChange")}, Figure: "held",
	}, {
		Name: "a neighbour changes its MAC address, or does not answer", How: "a new address in the backend's " +
			"namespace; resolution that fails",
		Target: "the new address is used, packets for others do not wait, those held are bounded",
		Tests: []Test{{"host/neigh", []string{"TestNewMACIsUsed", "TestFailedNeighbourIsNotReadyUntilItIsBack"}},
			{"fastpath", []string{"TestHeldPerHop", "TestKnownNeighboursFirst"}}},
		Figure: "held",
	}, {
		Name: "routes go and come", How: "`ip route`", Target: "a named drop meanwhile, forwarding afterwards",
		Tests: []Test{{"host/neigh", []string{"TestDefaultRouteFlips", "TestKindsOfRoutes"}},
			{"fastpath", []string{"TestUnreachableRoute", "TestRoutesChange"}}, e2e("TestUnreachable")},
		Figure: "held",
	}, {
		Name: "clocks jump", How: "time of flows that lies in the future", Target: "such a flow is not taken over",
		Tests: []Test{{"flowtable", []string{"TestRecoverDamaged"}},
			{"flowtable/conn", []string{"TestObserveNeverStepsBack"}}},
		Figure: "held",
		Without: "a step of CLOCK_REALTIME, which is the whole machine's: flows, pins and heartbeat use " +
			"CLOCK_BOOTTIME, which it does not change. A time namespace with an offset: the kernel program reads the " +
			"machine's CLOCK_BOOTTIME, so a daemon must run in the initial time namespace",
	}, {
		Name: "storms of changes, an API server that fails", How: "updates at a rate, a server that goes away, " +
			"forgets its history, lists in another order, repeats and delays events",
		Target: "0 connections broken, no table by half a list",
		Tests: []Test{e2e("TestOutage", "TestChurn", "TestUDPLeavesUnservingEndpointAtOnce"),
			{"control/k8s", []string{"TestExpiredWatchListsAnew", "TestDuplicateAndStaleEvents",
				"TestNothingIsPublishedBeforeAllIsListed"}}, {"control/loop", []string{"TestUpdateLatency"}}},
		Figure: "0 of 1,000 and 0 of 200 broken",
	}, {
		Name: "packets are lost, doubled, reordered, damaged", How: "netem in a guest (`make -C test vm-kernel-test`); " +
			"mutated packets",
		Target: "bodies arrive whole, wrong checksums stay wrong",
		Tests:  []Test{e2e("TestGarbage"), {"fastpath", []string{"TestGarbage"}}},
		Figure: "docs/guarantees.md",
		Without: "netem on this machine, whose kernel lacks it: `TestNetem` is run in the guest, not by " +
			"`make -C test faults`",
	}, {
		Name: "floods", How: "SYNs, handshakes without an answer, fragments, RSTs, ICMP errors, new UDP flows",
		Target: "no established connection gives way, honest ones come through",
		Tests: []Test{e2e("TestEstablishedFirst", "TestBlindSender"), {"fastpath", []string{
			"TestHonestHandshakesBesideSYNs", "TestFragmentsWithoutFirst", "TestForgedErrors", "TestResetRate"}},
			{"flowtable", []string{"TestHonestHandshakesInSYNFlood", "TestUDPPortsInSpoofedFlood"}}},
		Figure: "docs/guarantees.md",
	}, {
		Name: "the flow table is full, a backend's ports are used up", How: "small tables",
		Target: "established flows stay, new ones are refused by name",
		Tests: []Test{{"flowtable", []string{"TestFullTableAdmits", "TestEstablishedFirst", "TestPorts",
			"TestPortsGiveWay"}}, {"fastpath", []string{"TestStepProbesBoundedly"}}},
		Figure: "held",
	}, {
		Name: "a backend resets, is silent, comes back", How: "backends that answer with RST or not at all",
		Target: "another backend, as often as is allowed; records and ports are given back",
		Tests: []Test{{"fastpath", []string{"TestRetryTriesAllBackends", "TestRetryDoublingTimers"}},
			{"flowtable", []string{"TestClientsOfCrashedBackendReconnect", "TestResetConnectionsHoldNoPorts"}}},
		Figure: "held",
	}, {
		Name: "another tool is there", How: "sockets removed from the XSKMAP, the program detached by its link, " +
			"another program on the device",
		Target: "put right within 3 s, no connection broken, never two programs",
		Tests: []Test{e2e("TestForeignTool"), {"xdpprog", []string{"TestForeignProgram"}},
			{ports, []string{"TestProgramLost"}}},
		Figure: "served again after 0.5 s, 0 of 100 broken",
		Without: "the program detached from the backends' interface: until it is attached again, the node's kernel " +
			"answers replies with RST, which ends their connections",
	}, {
		Name: "the number of queues changes", How: "`ethtool -L` on veth", Target: "queues that are gone are closed, " +
			"those without a socket are the kernel's and reported",
		Tests: []Test{{ports, []string{"TestQueuesAdded", "TestDeviceWithFewerQueues", "TestFewerQueuesWanted"}},
			e2e("TestQueueWithoutSocket", "TestWorkersShareFlows")},
		Figure: "held",
	}, {
		Name: "the flow table's memory is damaged", How: "200 bits flipped while no daemon runs",
		Target: "damaged flows are not taken over; nothing is translated wrongly",
		Tests:  []Test{e2e("TestFlowTableDamaged"), {"flowtable", []string{"TestRecoverDamaged"}}},
		Figure: "89 flows refused, 90 of 500 connections broken, 0 wrong answers, 0 damaged packets",
		Without: "bits that flip under a running daemon: a record is checked when it is taken over, not for each " +
			"packet",
	}, {
		Name: "two processes", How: "a second start", Target: "the second waits, the first is unaffected",
		Tests: []Test{e2e("TestSecondProcessEndsWhileItWaits", "TestSecondProcessTakesOver"),
			{"xdpprog", []string{"TestSecondInstance"}}, {"flowtable", []string{"TestFileInUse"}}},
		Figure: "0 of 200 broken",
	}, {
		Name: "a process dies while the next one takes over",
		How: "kill -9 of either at a random moment, 50 times; SIGSTOP of either for longer than the other one waits; " +
			"either side's failure at each message",
		Target: "one of them goes on, or the next start does as after a crash; never both",
		Tests: []Test{e2e("TestTakeOverDies", "TestTakeOverStopped", "TestTakeOverOfStopped"),
			{"gateway/handover", []string{"TestDeathAtEachMessage", "TestStoppedTaker"}}},
		Figure: "0 of 200 broken; 0 datagrams lost beside a process that is stopped",
	}, {
		Name: "all of it, for a long time", How: "`sluice-bench soak`", Target: "0 connections broken but by their " +
			"backend's end; memory, descriptors, goroutines, threads, pins, files and interfaces flat",
		Tests:  []Test{{"test/soak", []string{"TestSoak"}}},
		Figure: "below",
	},
}
