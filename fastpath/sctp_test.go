package fastpath_test

import (
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

func sctpLab(t *testing.T, edits ...func(*services.Builder)) *lab {
	return newLab(t, labConfig{workers: 2, edit: func(b *services.Builder) {
		both(b, 30, ruleVIP, header.ProtoSCTP, set(b, 30, 30, header.ProtoSCTP, backend4, second4))
		node := services.Rule{Set: set(b, 31, 32, header.ProtoSCTP, backend4)}
		rules(b, 31, services.NodePort, "0.0.0.0", 30090, header.ProtoSCTP, node, node)
		for _, edit := range edits {
			edit(b)
		}
	}})
}

// TestSCTPAssociation: an association passes the states of connections from INIT to SHUTDOWN
// COMPLETE, at any worker.
func TestSCTPAssociation(t *testing.T) {
	l := sctpLab(t)
	client, vip := join(client4, 40000), join(ruleVIP, 80)
	var snat, be string
	for i, step := range []struct {
		chunk  uint8
		client bool
		state  flowtable.State
	}{
		{header.SCTPInit, true, flowtable.SynSeen},
		{header.SCTPInitAck, false, flowtable.SynRecv},
		{header.SCTPCookieEcho, true, flowtable.Unconfirmed},
		{header.SCTPCookieAck, false, flowtable.Established},
		{0, true, flowtable.Established}, // DATA
		{header.SCTPShutdown, true, flowtable.FinClient},
		{header.SCTPShutdownAck, false, flowtable.LastAckClient},
		{header.SCTPShutdownComplete, true, flowtable.TimeWaitClient},
	} {
		src, dst := client, vip
		if !step.client {
			src, dst = be, snat
		}
		l.send(i%2, headertest.SCTP(src, dst, step.chunk))
		_, p := l.out(l.workers[i%2].nic)
		if s, d := ends(&p.Tuple); step.client {
			snat, be = s.String(), d.String()
		} else {
			l.wantTuple(&p, vip, client)
		}
		if l.table.Counts().States[step.state] != 1 {
			t.Fatalf("after chunk %d the flow is not %v: %v", step.chunk, step.state, l.table.Counts().States)
		}
	}
	// The same association again is scheduled again, and not dropped.
	l.send(0, headertest.SCTP(client, vip, header.SCTPInit))
	l.out(l.workers[0].nic)
	if l.table.Counts().States[flowtable.SynSeen] != 1 {
		t.Errorf("INIT on an association that is over: %v", l.table.Counts().States)
	}
}

// TestSCTPWithoutFlow: only INIT makes a flow.
func TestSCTPWithoutFlow(t *testing.T) {
	for name, chunk := range map[string]uint8{
		"DATA": 0, "INIT ACK": 2, "HEARTBEAT": 4, "ABORT": 6, "SHUTDOWN": 7, "COOKIE ECHO": 10,
	} {
		t.Run(name, func(t *testing.T) {
			l := sctpLab(t)
			l.send(0, headertest.SCTP(join(client4, 40000), join(ruleVIP, 80), chunk))
			l.nothing(l.workers[0].nic, l.workers[0].host)
			l.wantDrop(reason.NoFlow, 1)
		})
	}
}

// TestSCTPStaysWithARemovedEndpoint: like TCP, and unlike UDP.
func TestSCTPStaysWithARemovedEndpoint(t *testing.T) {
	l := sctpLab(t)
	client, vip := join(client4, 40000), join(ruleVIP, 80)
	l.send(0, headertest.SCTP(client, vip, header.SCTPInit))
	_, p := l.out(l.workers[0].nic)
	src, dst := ends(&p.Tuple)
	l.publish(func(b *services.Builder) {
		for i := range uint32(2) {
			b.DeleteBackend(services.MakeBackendRef(30+i, 1))
		}
		both(b, 30, ruleVIP, header.ProtoSCTP, &services.EndpointSet{})
	})
	l.send(0, headertest.SCTP(client, vip, 0))
	_, p = l.out(l.workers[0].nic)
	l.wantTuple(&p, src.String(), dst.String())
	l.send(0, headertest.SCTP(dst.String(), src.String(), 0))
	_, p = l.out(l.workers[0].nic)
	l.wantTuple(&p, vip, client)
}

// TestSCTPRetry: a repeated INIT is handled like a repeated SYN.
func TestSCTPRetry(t *testing.T) {
	l := sctpLab(t, func(b *services.Builder) { b.Settings().RetryOther = true })
	var went []string
	for range 3 {
		l.send(0, headertest.SCTP(join(client4, 40000), join(ruleVIP, 80), header.SCTPInit))
		_, p := l.out(l.workers[0].nic)
		_, dst := ends(&p.Tuple)
		went = append(went, dst.String())
		l.step(3 * time.Second)
	}
	if went[0] != went[1] || went[1] == went[2] {
		t.Errorf("INIT and its repetitions went to %v", went)
	}
}

// TestSCTPFragments: no fragment is translated, and the node's own fragments go to the kernel.
func TestSCTPFragments(t *testing.T) {
	big := func(src, dst string) [][]byte {
		p := headertest.SCTP(src, dst, 0)
		p.Payload = make([]byte, 800)
		return headertest.Split(p.Bytes(), 400, 9)
	}
	l := sctpLab(t, func(b *services.Builder) { // an external IP may be an address of the node
		b.SetAddr(addr(node4), services.AddrVIP|services.AddrNode|services.AddrLocal)
	})
	l.send(0, headertest.SCTP(join(client4, 40000), join(ruleVIP, 80), header.SCTPInit))
	_, p := l.out(l.workers[0].nic)
	src, dst := ends(&p.Tuple)
	for _, tt := range []struct {
		name     string
		src, dst string
		dropped  [3]bool // by fragment; false: to the kernel
	}{
		{"to a VIP", join(client4, 40000), join(ruleVIP, 80), [3]bool{true, true, true}},
		{"to a VIP's unserved port", join(client4, 40000), join(ruleVIP, 81), [3]bool{true, true, true}},
		{"to a node port", join(client4, 40000), join(node4, 30090), [3]bool{true, false, false}},
		{"an answer of a flow", dst.String(), src.String(), [3]bool{true, false, false}},
		{"to the node", join(client4, 40000), join(node4, 22), [3]bool{false, false, false}},
		{"to the node's source address", join(backend4, 40000), join(snat4, 22), [3]bool{false, false, false}},
	} {
		fragments := big(tt.src, tt.dst)
		if len(fragments) != 3 {
			t.Fatalf("%d fragments", len(fragments))
		}
		for i, f := range fragments {
			before := l.drops()[reason.SCTPFragment.String()]
			l.workers[0].nic.Inject(f)
			l.step(time.Microsecond)
			dropped := l.drops()[reason.SCTPFragment.String()] == before+1
			_, kernel := l.workers[0].host.Take(nil)
			if dropped != tt.dropped[i] || kernel == dropped {
				t.Errorf("%s, fragment %d: dropped %v, to the kernel %v", tt.name, i, dropped, kernel)
			}
			l.nothing(l.workers[0].nic)
		}
	}
}

// TestSCTPShortFirstFragment: the kernel does not get the first fragment of an INIT for a frontend,
// however short it is, so it cannot reassemble the packet. It gets first fragments for the node's
// own ports.
func TestSCTPShortFirstFragment(t *testing.T) {
	for _, bytes := range []int{8, 16, 24} {
		for _, tt := range []struct {
			dst     string
			dropped bool
		}{{join(node4, 30090), true}, {join(node4, 22), false}} {
			l := sctpLab(t)
			first := headertest.Split(headertest.SCTP(join(client4, 40000), tt.dst, header.SCTPInit).Bytes(), bytes,
				9)[0]
			l.workers[0].nic.Inject(first)
			l.step(time.Microsecond)
			_, kernel := l.workers[0].host.Take(nil)
			if dropped := l.drops()[reason.SCTPFragment.String()] == 1; dropped != tt.dropped || kernel == dropped {
				t.Errorf("first %d bytes to %s: dropped %v, to the kernel %v", bytes, tt.dst, dropped, kernel)
			}
		}
	}
}
