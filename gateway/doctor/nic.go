package doctor

import (
	"fmt"
	"math/bits"
	"strings"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/host/nic/ethtool"
)

// restarts has the drivers that take the device, and so the link, down and up when the first XDP
// program is attached or the last one is detached: igb_xdp_setup, ixgbe_xdp_setup, i40e_xdp_setup,
// ice_xdp_setup_prog, aq_xdp_setup and vmxnet3_xdp_set in drivers/net. Replacing a program does not
// take the link down.
var restarts = map[string]bool{"igb": true, "ixgbe": true, "i40e": true, "ice": true, "atlantic": true, "vmxnet3": true}

// attaching reports whether attaching the first program takes the link down.
func (e *examination) attaching(d *Interface) {
	if !restarts[d.Driver] || d.generic(e.interfaceConfig(d.Name)) {
		return
	}
	found := "driver " + d.Driver + " takes the link down for a moment when an XDP program is attached or detached"
	if d.Program != "" {
		e.ok("xdp-attach", d.Name, found+"; one is attached, and replacing it does not")
		return
	}
	do := "start sluice before the node gets traffic; drain.handOver: true keeps the program, and the link, over " +
		"restarts"
	if e.f.Config.Drain.HandOver {
		do = "start sluice before the node gets traffic; restarts keep the program (drain.handOver)"
	}
	e.add(Warn, "xdp-attach", d.Name, found+": the next start takes it down", do)
}

// workerCount returns the number of workers: the configured one, or the number of queues of the
// interface with the fewest, so that each worker can send on every interface. It is 0 if no
// interface can be read.
func (e *examination) workerCount() (n int, fewest string) {
	for i := range e.f.Interfaces {
		d := &e.f.Interfaces[i]
		if used := e.queuesUsed(d); d.Err == nil && (fewest == "" || used < n) {
			n, fewest = used, d.Name
		}
	}
	if c := e.f.Config.Workers; c > 0 && c < n {
		return c, ""
	}
	return n, fewest
}

// workers reports the number of workers, and the interface that limits it.
func (e *examination) workers() {
	n, fewest := e.workerCount()
	if n == 0 {
		return
	}
	if fewest == "" {
		e.ok("workers", "", fmt.Sprintf("%d, as configured", n))
		return
	}
	for i := range e.f.Interfaces {
		d := &e.f.Interfaces[i]
		if used := e.queuesUsed(d); d.Err == nil && used > n && e.f.CPUs > n {
			e.add(Warn, "workers", "",
				fmt.Sprintf("%d: each worker needs its own queue on every interface, and %s has %s, where %s "+
					"has %d", n, fewest, plural(n), d.Name, used),
				e.moreQueues(fewest, min(used, e.f.CPUs)))
			return
		}
	}
	e.ok("workers", "", fmt.Sprintf("%d, one for each queue of %s", n, fewest))
}

// moreQueues returns how to get n queues on an interface.
func (e *examination) moreQueues(name string, n int) string {
	for i := range e.f.Interfaces {
		d := &e.f.Interfaces[i]
		switch {
		case d.Name != name:
		case e.interfaceConfig(name).Queues != config.AllQueues:
			return "set queues of " + name + " to all"
		case d.MaxQueues <= d.Queues:
			return fmt.Sprintf("driver %s supports no more: expect the throughput of that many cores, or use a NIC "+
				"with more queues", d.Driver)
		default:
			n = min(n, d.MaxQueues)
		}
	}
	return fmt.Sprintf("ethtool -L %s combined %d", name, n)
}

// flowHash checks by which fields packets are spread over the queues, and so over the workers.
func (e *examination) flowHash(d *Interface) {
	if min(d.RSSQueues, e.queuesUsed(d)) < 2 || len(d.FlowHash) == 0 {
		return
	}
	workers, _ := e.workerCount()
	var families, commands []string
	for _, f := range []struct {
		flow ethtool.Flow
		name string
	}{{ethtool.TCP4, "TCP over IPv4"}, {ethtool.TCP6, "TCP over IPv6"}, {ethtool.UDP4, "UDP over IPv4"},
		{ethtool.UDP6, "UDP over IPv6"}} {
		if d.FlowHash[f.flow].AddressesAlone() {
			families = append(families, f.name)
			commands = append(commands, fmt.Sprintf("ethtool -N %s rx-flow-hash %v sdfn", d.Name, f.flow))
		}
	}
	if len(commands) > 0 && workers < 2 {
		e.ok("rss-hash", d.Name, strings.Join(families, ", ")+
			" by addresses alone, which makes no difference to one worker")
		return
	}
	if len(commands) > 0 {
		e.add(Warn, "rss-hash", d.Name,
			fmt.Sprintf("%s: the queue is chosen by addresses alone, so all packets of one client to a VIP, and all "+
				"answers of one backend, arrive at one of %d queues and one worker",
				strings.Join(families, ", "), d.RSSQueues), strings.Join(commands, "; "))
		return
	}
	found := "TCP and UDP by addresses and ports"
	if d.FlowHash[ethtool.SCTP4].AddressesAlone() || d.FlowHash[ethtool.SCTP6].AddressesAlone() {
		found += ", SCTP by addresses alone"
	}
	e.ok("rss-hash", d.Name, found)
}

// rings compares the device's rings with the number of frames for them: in zero-copy, the driver
// fills both rings with frames of the UMEM.
func (e *examination) rings(d *Interface, c config.Interface) {
	r := d.Rings
	if r.Rx == 0 {
		return
	}
	found := fmt.Sprintf("the NIC's rings: rx %d of at most %d, tx %d of at most %d descriptors", r.Rx, r.MaxRx, r.Tx,
		r.MaxTx)
	if have := e.f.Config.Tuning.FramesPerQueue(); !d.generic(c) && e.zeroCopied(d) && int(r.Rx+r.Tx) > have {
		enough := 1 << bits.Len(uint(int(r.Rx+r.Tx)+have/2-1)/2) // of frames, two for each descriptor
		e.add(Warn, "rings", d.Name,
			fmt.Sprintf("%s; in zero-copy there are %d frames for them (2 x tuning.ringSize), so they cannot "+
				"both be full", found, have),
			fmt.Sprintf("set tuning.ringSize to %d, or: ethtool -G %s rx %d tx %d", enough, d.Name,
				min(int(r.Rx), have/4), min(int(r.Tx), have/4)))
		return
	}
	e.ok("rings", d.Name, found)
}

func plural(queues int) string {
	if queues == 1 {
		return "1 queue"
	}
	return fmt.Sprintf("%d queues", queues)
}
