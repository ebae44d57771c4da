// Package compare measures forwarding systems against each other: the same traffic, the same
// network, one system after the other.
//
//	client0 [eth0] ═══ [front0] gateway [back0] ═══ [eth0] backend0
//	generator           the system under test          receiver
//	(test/bed/stateless,   sluice run · l2fwd over our    (test/bed/stateless: an
//	 AF_XDP, a thread   rings · l2fwd over asavie/xdp  XDP program counts
//	 per queue)         · XDP NAT · ip_forward ·       and drops)
//	                    nftables · kube-proxy
//
// The clients have 100 addresses with many ports, N flows in total, UDP to one load balancer
// address. Translating systems send the packets to ten endpoints, from the gateway's address. By
// default packets go one way only: the server does not answer.
//
// # A comparison
//
// Rounds are interleaved: A B C, B C A, C A B. In each round a system is built in namespaces of its
// own. The benchmark establishes the flows and checks the packets that arrive (every flow is
// counted; addresses and ports are checked on samples), sends slow traffic for a while
// (Config.Settle: Sluice moves its workers after it has observed on which CPUs packets arrive),
// measures, and removes the system. kube-proxy with thousands of Services needs a minute to start,
// so it is started once, and its process and the control plane are stopped (SIGSTOP) while other
// systems are measured. A stopped process costs nothing, and neither do rules in a namespace
// without traffic. During its own measurement kube-proxy runs as installed; the control plane stays
// stopped, because in production it runs on other machines.
//
//   - Throughput is the number of packets that arrive per second while the generator sends as fast
//     as it can. Packets still queued when sending ends are counted: up to the rings of each queue,
//     0.4 % of two seconds at half a million packets a second. Throughput is the headline figure,
//     because generator, system and receiver share the processors here: the time left for the
//     system depends on how long the system blocks the generator, and a search for a rate without
//     loss is harder on systems that have queues. The no-drop rate (RFC 2544, section 26.1) is
//     shown beside it, by default with 0.1 % of loss allowed, because a veth's own ring of 256
//     packets loses some. For every system, two of three trials decide on a rate: a hypervisor that
//     stops all processors for 10 ms spoils one trial of any system.
//   - Processor time is the non-idle time of the whole machine per packet that arrived. It is
//     measured at each system's own highest rate, which is the rate of the target, and at one rate
//     common to all systems, half the throughput of the slowest translating system. These are two
//     different figures. At its highest rate a system also pays for packets that it dropped, and
//     works in full batches; at the common rate it pays for sleeping and waking up. Quote both
//     figures or neither. Non-idle time includes short interrupts, which tick accounting misses;
//     ticks only divide the time into user, kernel and interrupts.
//   - Latency is one-way, from the generator's time stamp to the run of the receiver's XDP program,
//     which computes the histogram itself (stateless.Timed). Receiving threads would take processor
//     time from a worker, but none that a system inside the generator's system call needs. Latency
//     is measured at 10, 50 and 90 % of each system's own no-drop rate, and reported as an absolute
//     value and as the difference to the kernel's plain forwarding in the same round. Only packets
//     that arrive have a latency, and the generator stamps a packet when it writes it, not when it
//     was due. If the system blocks the generator, the generator sends later, and no figure
//     contains that wait. This favours systems in the kernel, which work inside the generator's
//     system call; therefore the shares of packets sent and delivered are shown beside the
//     latencies.
//
// Ratios are computed within a round, and the median ratio is compared with the target. A round in
// which a system has no sample has no ratio for that system.
//
// # Same and different conditions
//
// The same for all systems: veth pairs, their queues, offloads off (also GRO), MTU, permanent
// neighbours, routes, addresses, the packets and their order, the generator's threads and their
// CPUs, the receiver. A veth's interrupt work runs on the CPU of the sender, so for all systems
// packets arrive on the CPUs in Senders, through as many queues.
//
// Different, because the systems are built that way: systems in user space have an XDP program on
// the gateway's interfaces, and systems in the kernel have none. With an XDP program a veth polls
// (NAPI) and queues 256 packets; it drops packets beyond that, and the generator continues. Without
// one a packet is handled inside the generator's system call, so the generator cannot be faster
// than the kernel forwards, and nothing is lost, unless packets are steered (RPS) to another CPU's
// backlog (net.core.netdev_max_backlog, 1000). XDP NAT translates in the NAPI poll, on the CPU on
// which packets arrive.
//
// Other processes on the machine delay threads by a scheduler tick at a time (4 ms with HZ=250),
// and with them every system that forwards in a thread; they do not delay softirqs. Config.First
// gives this session priority over all others: the generator, the receiver and forwarders that are
// processes, but also ksoftirqd, which handles the kernel's forwarding under load. So it is off
// unless requested, and the run records it. Without it the daemon leads a session of its own, as a
// service does, and decides itself whether to raise that session's priority.
//
// # Sluice configurations
//
// System sluice is the daemon with its defaults: no worker is placed, no setting changed.
// sluice-placed has a worker, placed by configuration, on each CPU on which no packet arrives, with
// all queues of that CPU. l2fwd is placed in the same way, waits for packets as the gateway does
// there, and has the same worker time slice; asavie/xdp is placed in the same way with one worker
// per queue. On hardware the advice differs (docs/tuning.md): the interrupts of a queue and its
// worker on one core starve each other in turn. sluice-options is the daemon with Config.Options.
//
// # Peers at their best
//
// A system in the kernel handles packets on the CPU on which they arrive, or on all CPUs (suffix
// -rps), or on the CPUs on which no packet arrives (suffix -rps-free). Which variant is the fastest
// depends on the senders, the machine and the figure: with one sending CPU of two it is often
// -rps-free; with a sender on each CPU there is no free CPU. So each variant is a system, all are
// measured in the same rounds, and each ratio is computed against the variant with the best median
// of that figure. The report names that variant and the candidates. If only one variant of a peer
// was measured, the report states that. RPS does not apply to XDP NAT, because RPS steers packets
// after they have passed XDP.
//
// Each entry of Config.Rows is compared separately: packets from one CPU through one queue, from
// one CPU through two queues, and from each CPU through a queue of its own.
//
// # Both ways, and many flows
//
// With Config.BothWays the server's interface answers each packet (XDP_TX), and the benchmark
// counts answers that reach the client. Default configurations have no room for more than 100,000
// flows, so above that every system is enlarged and nothing else is changed (many.go): 16 SNAT
// addresses, Sluice's flow table, XDP NAT's map, nf_conntrack_max and nf_conntrack_buckets, which
// the machine's owner sets. Before measuring, flows are established in parts of 100,000, each of
// them answered, also if the measured traffic goes one way. kube-proxy masquerades with one address
// and is left out.
//
// # Bulk transfers
//
// With Config.Bulk the client and the server have TCP connections with each other, one and then
// eight, in each direction. Both ends are threads of the benchmark that block in system calls; they
// may run on any CPU. The figures are bytes received per second, processor time of the whole
// machine per byte, and segments sent again. Offloads are off, except for nftables-offloads, whose
// interfaces have the kernel's defaults for a veth: there a packet of 64 KiB crosses the gateway as
// one packet. A wire carries no such packets; some NICs merge packets into them (GRO).
//
// # Read before quoting a ratio
//
// With senders on one of two CPUs, a system in the kernel without RPS, XDP NAT included, has only
// the CPU on which the generator runs; a system with RPS or with workers in user space has the
// second CPU, too. So the ratio to a system "as installed" mostly measures a second core, as it
// would on a machine whose NIC interrupts one core, and shows little of the work per packet. The
// ratio to the same system at its best, and processor time per packet, show that. With a thread on
// each processor, as behind a NIC with a queue and an interrupt per core, all systems have both
// CPUs. Quote the ratio to a peer at its best for all rows of senders, or quote none.
//
// # Differences between a veth and a NIC
//
// The generator's frames are socket buffers. For XDP a veth copies each one into a page (the
// headroom that XDP needs is missing), copies it into the UMEM on redirect to an AF_XDP socket, and
// makes a socket buffer of it again on transmit: three copies or allocations that zero-copy
// hardware avoids, because a NIC delivers by DMA into the UMEM, and that systems in the kernel do
// not need here either. So ratios between systems in user space and systems in the kernel are lower
// here than on hardware. Ratios among systems in user space (Sluice to l2fwd) are nearer to 1,
// because their common cost is high.
package compare
