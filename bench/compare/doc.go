// Package compare measures systems that forward against each other, on the same traffic
// in the same network, in turn:
//
//	client0 [eth0] ═══ [front0] gateway [back0] ═══ [eth0] backend0
//	generator           the system under test          receiver
//	(test/bed/stateless,   sluice run · l2fwd over our    (test/bed/stateless: an
//	 AF_XDP, a thread   rings · l2fwd over asavie/xdp  XDP program counts
//	 per queue)         · XDP NAT · ip_forward ·       and drops)
//	                    nftables · kube-proxy
//
// Clients are 100 addresses with many ports, N flows in all, UDP to one load balancer's
// address. What translates sends them to ten endpoints, from the gateway's address. Packets go one
// way: nobody answers.
//
// # A comparison
//
// Rounds are interleaved: A B C, B C A, C A B. A system is built in namespaces of its own, its
// flows are established and what arrives is checked (every flow, addresses and ports of samples),
// it takes slow traffic for a while (Config.Settle: Sluice's workers move once they have seen where
// packets arrive), it is measured and taken down. kube-proxy with thousands of Services would take
// a minute for that each time; so it is started once, and while others are measured its process and
// the control plane are stopped (SIGSTOP). Rules in a namespace through which no packet goes cost
// nothing, a stopped process neither. While it is measured kube-proxy runs, as installed; the
// control plane stays stopped, because it would be on other machines.
//
//   - Throughput is what arrives per second when packets are sent as fast as they can be. What was
//     queued when sending ended counts: up to the rings of each queue, 0.4 % of two seconds at half
//     a million a second. It is the headline, because here generator, system and receiver share the
//     processors: what is left for the system depends on how much the generator is held up by it,
//     and a search for a rate without loss is harder on systems that have queues. The no-drop rate
//     (RFC 2544, section 26.1, by default with 0.1 % allowed, because a veth's own ring of 256
//     packets loses) is beside it. For every system two of three trials decide about a rate: a
//     hypervisor that stops all processors for 10 ms makes one trial bad, for any system.
//   - Processor time is that of the whole machine, everything in it, per packet that arrived: at
//     each one's highest rate, which is what the target is about, and at one rate for all, half of
//     what the slowest system that translates can do. They are two different things. At its highest
//     rate a system pays for packets that it dropped, and works in full batches; at one rate it
//     pays for falling asleep and waking up. Quote both figures, or neither. It is
//     all time that was not idle, not the ticks that fell on somebody, which miss short interrupts;
//     the ticks say only how it divides.
//   - Latency is one-way, from the generator's time stamp to the run of the receiver's XDP program,
//     which counts it itself (stateless.Timed): threads that received would take the processor of a
//     worker, and none that a system inside of the generator's call needs. It is at 10, 50 and 90 %
//     of each system's own no-drop rate; and what that is above the kernel's plain forwarding in
//     the same round. Only what arrived has one, and a packet is stamped when it is written, not
//     when it was due: a generator that is held up by the system sends later, and the wait is in no
//     figure. That favours those in the kernel, which work inside the generator's system call; what
//     was sent and what arrived is beside the latencies.
//
// Ratios are of the same round, and their median is what is compared with a target. A system that
// has no sample of a round has no ratio of it.
//
// # What is the same for all, and what is not
//
// The same: veth pairs, their queues, offloads off (also GRO), MTU, permanent neighbours,
// routes, addresses, the packets and their order, the generator's threads and their CPUs, the
// receiver. The interrupts of a veth run on the CPU of who sends, so for all systems packets
// arrive on the CPUs of Senders, by as many queues.
//
// Different, because it is what the systems are: an XDP program is on the gateway's interfaces for
// those in user space, and none for those in the kernel. With one, a veth polls (NAPI) and queues
// 256 packets; what does not fit is dropped and the generator goes on. Without one a packet is
// handled inside the generator's system call, so the generator cannot be faster than the kernel
// forwards, and nothing is lost: unless packets are steered (RPS) to another CPU's backlog
// (net.core.netdev_max_backlog, 1000). XDP NAT translates in the
// poll, on the CPU where packets arrive.
//
// What else runs on the machine holds up threads, for a tick of the scheduler at a time (4 ms with
// HZ=250), and with them whatever forwards by a thread; softirqs it does not. Config.First puts
// this session before all others: generator, receiver and forwarders that are processes, and behind
// them also ksoftirqd, which handles packets of the kernel's forwarding where many arrive. So it is
// off unless requested, and the run says so. Without it the daemon leads a session of its own, as a
// service does, and decides itself whether that goes before others.
//
// # Sluice as it comes
//
// System sluice is the daemon with its defaults and nothing else: no worker is placed, no setting
// changed. sluice-placed has, by hand, a worker on each CPU where no packet arrives, with all
// queues that fall to it, and so has l2fwd, which waits for packets as the gateway does there, and
// has its workers' time slice; asavie/xdp is placed likewise, with a worker for each queue. That is
// what is advised for hardware (docs/tuning.md): the interrupts of a queue and its worker on one
// core take turns at starving each other. sluice-options is the daemon with Config.Options.
//
// # Peers at their best
//
// A system in the kernel handles packets where they arrive, or on all CPUs (its name with -rps), or
// on the CPUs where no packet arrives (-rps-free). Which is the fastest depends on the senders, the
// machine and the figure: with one sender of two CPUs it is often -rps-free, with a sender on each
// there is no CPU for that. So each way is a system, all are measured in the same rounds, and each
// ratio is to the one whose median is best in the figure that the ratio is of: the report names it
// and those that it was chosen of. Where a peer was measured in one way alone, the report says
// that. RPS does not apply to XDP NAT: it is about packets that have passed XDP.
//
// A comparison is made for each of Config.Rows: packets from one CPU by one queue, from one CPU by
// two queues, and from each CPU by a queue.
//
// # Both ways, and many flows
//
// With Config.BothWays the server's interface answers each packet (XDP_TX), and what is counted are
// answers that reach the client. Above 100,000 flows defaults have no room, so every system is made
// large enough, and nothing else is changed (many.go): 16 SNAT addresses, Sluice's flow table, XDP
// NAT's map, nf_conntrack_max and nf_conntrack_buckets, which the machine's owner sets. Flows are
// established in parts of 100,000, answered each, before anything is measured, also one way.
// kube-proxy masquerades with one address and is left out.
//
// # Read before quoting a ratio
//
// With senders on one of two CPUs, a system in the kernel without RPS has the one that the
// generator runs on, and nothing else, XDP NAT too; with RPS, and with workers in user space, the
// second one too. So a ratio to a system "as installed" is for the larger part a second core, as it
// is on a machine whose NIC interrupts one core, and says little about the work per packet: that is
// the ratio to the same system at its best, and processor time per packet. With a thread on each
// processor, as behind a NIC with a queue and an interrupt per core, all systems have both. Quote
// the ratio to a peer at its best, of all rows of senders, or none.
//
// # What a veth is not
//
// The generator's frames are socket buffers. For XDP a veth copies each into a page (the headroom
// that XDP wants is missing), copies it into the UMEM on redirect to an AF_XDP socket, and makes a
// socket buffer of it again on transmit: three copies or allocations that hardware with zero-copy
// does without, and that no system in the kernel pays. A NIC delivers by DMA into the UMEM. So
// ratios between systems in user space and those in the kernel are lower here than on hardware, and
// ratios among those in user space (Sluice to l2fwd) are nearer to 1, because what they share is
// dear.
package compare
