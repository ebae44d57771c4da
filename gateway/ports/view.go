package ports

import (
	"cmp"
	"fmt"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/host/nic/frames"
	"sluice.dev/sluice/serve/status"
)

// Views returns the ports for the status.
func (s *Set) Views() (list []status.InterfaceView) {
	for _, p := range s.ports {
		list = append(list, p.view())
	}
	return list
}

func (p *port) view() status.InterfaceView {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := status.InterfaceView{Name: p.name, Driver: p.device.Driver, Up: p.device.Up, MTU: p.device.MTU, Reason: p.why}
	v.Settings, v.Refused = p.napi.Values(), p.refused
	if p.attach != nil {
		v.Mode, v.Reason = p.attach.Mode().String(), p.attachReason()
	}
	slots := p.slots
	if p.open {
		slots = slots[:p.served]
	}
	for _, sl := range slots {
		q := status.QueueView{Queue: sl.queue, Worker: sl.worker, Reason: p.why}
		if socket := sl.socket.Load(); socket != nil {
			mode, reason := socket.Mode()
			if mode == xsk.Copy {
				reason = cmp.Or(p.whyCopy, reason)
			}
			q.Bound, q.ZeroCopy, q.Reason = true, mode == xsk.ZeroCopy, reason
			o := socket.Options()
			q.TxBudget, q.BusyPollMicros, q.BusyPollBudget = o.TxBudget, int(o.BusyPoll.Microseconds()),
				o.BusyPollBudget
			q.Refused = o.Refused
		}
		v.Queues = append(v.Queues, q)
	}
	return v
}

// QueueStats returns the kernel's counters of the sockets.
func (s *Set) QueueStats() (list []status.QueueStatsView) {
	for _, p := range s.ports {
		list = append(list, p.queueStats()...)
	}
	return list
}

func (p *port) queueStats() (list []status.QueueStatsView) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, sl := range p.slots {
		socket := sl.socket.Load()
		if socket == nil {
			continue
		}
		if k, err := socket.Stats(); err == nil {
			list = append(list, status.QueueStatsView{
				Interface: p.name, Queue: sl.queue, RxDropped: k.RxDropped, RxRingFull: k.RxRingFull,
				RxFillRingEmpty: k.RxFillRingEmptyDescs, RxInvalidDescs: k.RxInvalidDescs,
				TxInvalidDescs: k.TxInvalidDescs, TxRingEmpty: k.TxRingEmptyDescs,
			})
		}
	}
	return list
}

// Conditions reports problems of open ports, other than those that Links reports.
func (s *Set) Conditions() (list []status.ConditionView) {
	for _, p := range s.ports {
		list = append(list, p.conditions(s.frames)...)
	}
	return list
}

// conditions returns the problems of an open port.
func (p *port) conditions(chosen frames.Choice) (list []status.ConditionView) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open && p.kept.mtu != 0 {
		list = append(list, p.keptCondition(chosen.Size))
	}
	if !p.open || p.host {
		return list
	}
	if p.unread != nil {
		list = append(list, status.Warning("interfaces",
			fmt.Sprintf("interface %s stays open as it is: its present state could not be read: %v", p.name, p.unread)))
	}
	if about, err := devices.Check(p.device, p.config, chosen); err != nil {
		list = append(list, status.Failed(about, err.Error()))
	}
	if why := p.destinations.unknown; why != "" {
		list = append(list,
			status.Warning("mac-addresses",
				fmt.Sprintf("interface %s: frames for other hosts, and of VLANs without a device, are forwarded "+
					"as if they were for this node, because its MAC addresses are not known: %s", p.name, why)))
	}
	if p.pieces != "" && p.kept.mtu == 0 { // otherwise keptCondition reports it
		list = append(list, p.piecesCondition())
	}
	if p.served < len(p.slots) {
		list = append(list,
			status.Warning("queues",
				fmt.Sprintf("interface %s has %d queues and had %d at the start: some workers have fewer queues; "+
					"restart the daemon to assign the queues again", p.name, p.served, len(p.slots))))
	}
	if p.device.Spread <= p.served {
		return list
	}
	detail := fmt.Sprintf("interface %s receives on %d queues and %d are served: packets on the other queues go to "+
		"the kernel. "+
		"To receive only on the served ones: ethtool -X %s equal %d, then: ethtool -L %s combined %d", p.name,
		p.device.Spread, p.served, p.name, p.served, p.name, p.served)
	if p.config.Queues != config.AllQueues {
		return append(list, status.Warning("queues", detail))
	}
	return append(list, status.Failed("queues", detail+". Or restart the daemon to serve them all"))
}
