package fastpath_test

import (
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// afterParking is the number of packets that arrive at once: more than a step opens, so that most
// are parked.
const afterParking = 200

// steps runs the worker until it holds no packet.
func (l *lab) steps() {
	l.t.Helper()
	for range afterParking {
		l.step(time.Millisecond)
		if l.workers[0].stats.Held.Load() == 0 {
			return
		}
	}
	l.t.Fatalf("%d packets are still held", l.workers[0].stats.Held.Load())
}

// TestParkedFlowsAreChargedOnce: flows whose first packets were parked count once, when they are
// established.
func TestParkedFlowsAreChargedOnce(t *testing.T) {
	l := limitLab(t, services.Limits{SourceConnections: afterParking + 5, NewConnections: afterParking + 5})
	nic, vip := l.workers[0].nic, join(ruleVIP, 80)
	client := func(n int) string { return join(client4, uint16(1024+n)) }
	uses := func() [2]uint32 {
		a := addr(client4)
		id := uint32(30 + header.ProtoUDP)
		return [2]uint32{l.table.SourceUse(&a, false, id).Flows, l.table.ServiceUse(id).Flows}
	}
	for n := range afterParking {
		l.inject(headertest.UDP(client(n), vip, "question"))
	}
	l.step(time.Microsecond)
	if held := l.workers[0].stats.Held.Load(); held == 0 {
		t.Fatal("no packet was parked")
	}
	l.steps()
	var answers []*headertest.Packet
	for range afterParking {
		frame, ok := nic.Take(nil)
		if !ok {
			t.Fatalf("%d of %d packets were sent; drops %v", len(answers), afterParking, l.drops())
		}
		var p header.Packet
		header.Parse(frame, &p)
		snat, end := ends(&p.Tuple)
		answers = append(answers, headertest.UDP(end.String(), snat.String(), "answer"))
	}
	if got := uses(); got != [2]uint32{} {
		t.Errorf("source and service have %d before a flow is established", got)
	}
	l.inject(answers...)
	l.steps()
	nic.Loop()
	for range 2 { // the second datagram establishes the flow, the third changes nothing
		for n := range afterParking {
			l.inject(headertest.UDP(client(n), vip, "next"))
		}
		l.steps()
		nic.Loop()
		if got := uses(); got != [2]uint32{afterParking, afterParking} {
			t.Errorf("source and service have %d of %d flows", got, afterParking)
		}
	}
	if drops := l.drops(); len(drops) != 0 {
		t.Errorf("dropped %v", drops)
	}
}

// TestParkedPacketsAreRefusedOnce: parked packets that exceed a limit are dropped once with the
// limit's reason, and their frames are freed.
func TestParkedPacketsAreRefusedOnce(t *testing.T) {
	l := limitLab(t, services.Limits{SourceConnections: 1})
	l.stands(0, header.ProtoTCP, join(client4, 40000), join(ruleVIP, 80))
	for n := range afterParking {
		l.inject(headertest.TCP(join(client4, uint16(1024+n)), join(ruleVIP, 80), headertest.SYN))
	}
	l.step(time.Microsecond)
	if held := l.workers[0].stats.Held.Load(); held == 0 {
		t.Fatal("no packet was parked")
	}
	l.steps()
	l.nothing(l.workers[0].nic, l.workers[0].host)
	l.wantDrop(reason.LimitSourceConnections, afterParking)
}
