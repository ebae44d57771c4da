package pipeline

import (
	"fmt"
	"math/rand/v2"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// addClients appends n flows of new clients, to services in turn, TCP or UDP at random.
func (w *world) addClients(n int, rnd *rand.Rand) []flow {
	at := len(w.flows)
	for i := at; i < at+n; i++ {
		f := flow{
			client: clientBase4 + uint32(i/clientPorts), clientPort: uint16(firstPort + i%clientPorts),
			service: uint32(i % w.services), proto: header.ProtoTCP,
		}
		if rnd.Uint64()&1 == 0 {
			f.proto = header.ProtoUDP
		}
		w.flows = append(w.flows, f)
	}
	return w.flows[at:]
}

// open opens flows as their ends would: a TCP handshake and the backend's first segment, or a
// datagram, its answer and three others. The flows then hold the worker's choices. The first
// datagrams of a flow are counted, and cost more (flowtable/conn/datagram.go); after three
// unanswered requests the count has ended.
func (g *gate) open(flows []flow) error {
	for len(flows) > 0 {
		wave := flows[:min(chunkFrames, len(flows))]
		flows = flows[len(wave):]
		if err := g.openWave(wave); err != nil {
			return err
		}
	}
	return nil
}

func (g *gate) openWave(wave []flow) error {
	if err := g.say(wave, opening, false); err != nil {
		return fmt.Errorf("open flows: %w", err)
	}
	if err := g.learn(wave); err != nil {
		return err
	}
	for _, k := range []kind{answer, fromClient, fromClient, fromClient} {
		if err := g.say(wave, k, false); err != nil {
			return fmt.Errorf("open flows: %w", err)
		}
		g.settle()
	}
	if err := g.say(wave, fromBackend, true); err != nil {
		return fmt.Errorf("open flows: %w", err)
	}
	g.settle()
	return nil
}

// say gives the worker one packet of each flow, or of TCP flows only. The packets that it sends
// wait on the link.
func (g *gate) say(flows []flow, k kind, tcpOnly bool) error {
	var b [128]byte
	n := 0
	for i := range flows {
		if f := &flows[i]; !tcpOnly || f.proto == header.ProtoTCP {
			if !g.nic.Inject(b[:g.w.frame(&b, f, k, uint32(i))]) {
				return fmt.Errorf("the link took %d packets and no more", n)
			}
			n++
		}
	}
	if k == opening {
		g.nic.SetBurst(fastpath.OpensPerStep)
		defer g.nic.SetBurst(0)
	}
	spent, err := g.drain(g.now, n)
	g.now += uint64(spent)
	return err
}

// settle completes the sent packets.
func (g *gate) settle() int {
	sent := g.nic.Loop()
	g.Step(g.now)
	return sent
}

// learn reads the worker's choices for each flow from the packets that it sent.
func (g *gate) learn(wave []flow) error {
	var buf []byte
	var p header.Packet
	learnt := 0
	for {
		frame, ok := g.nic.Take(buf[:0])
		if !ok {
			break
		}
		buf = frame
		if r := header.Parse(frame, &p); r != reason.None {
			return fmt.Errorf("the worker sent a packet that it does not accept: %v", r)
		}
		tag := tagOf(frame, &p)
		if int(tag) >= len(wave) {
			return fmt.Errorf("the worker sent a packet that it did not receive: %x", frame)
		}
		f := &wave[tag]
		f.snat, f.snatPort = p.Tuple.Src[15]-2, p.Tuple.SrcPort
		f.pod = uint32(podOf(&p.Tuple.Dst, g.w.v6))
		learnt++
	}
	g.Step(g.now)
	if learnt != len(wave) {
		return fmt.Errorf("%d of %d flows could be opened; dropped: %s", learnt, len(wave), g.drops())
	}
	return nil
}
