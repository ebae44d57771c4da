//go:build root

package e2e

import (
	"io"
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/topo"
)

// TestBlindSender: a sender that sees no answers, of addresses that nobody has, towards Linux. From
// each a SYN; a SYN with another sequence number, which the backend challenges, with a bad ACK
// behind it; an RST; another bad ACK, and a good one of a number that is guessed. None of its flows
// is more than half-open, and honest clients connect meanwhile.
func TestBlindSender(t *testing.T) {
	const ports, blind, honest = 500, 4, 20
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}, small: true, damaging: true})
	client := l.Clients[0]
	w := openWire(t, client, l.Gateway.Interfaces[0].MAC)
	vip := netip.AddrPortFrom(netip.MustParseAddr(vip4), webPort).String()
	forged := map[netip.Addr]bool{}
	var sources []string
	for i := range byte(blind) {
		a := client.Addr4().As4()
		a[3] = 200 + i
		forged[netip.AddrFrom4(a)] = true
		for port := range uint16(ports) {
			sources = append(sources, netip.AddrPortFrom(netip.AddrFrom4(a), 20000+port).String())
		}
	}
	say := func(packets ...func(from string) []byte) {
		t.Helper()
		for _, from := range sources {
			for _, packet := range packets {
				if err := w.send(packet(from)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	segment := func(flags uint8, seq, ack uint32, bad bool) func(string) []byte {
		return func(from string) []byte {
			p := headertest.TCP(from, vip, flags)
			p.Seq, p.Ack = p.Seq+seq, p.Ack+ack
			frame := p.Bytes()
			if bad {
				frame[len(frame)-4] ^= 0x55 // of the checksum
			}
			return frame
		}
	}
	const syn, ack, rst = headertest.SYN, headertest.ACK, headertest.RST
	say(segment(syn, 0, 0, false))
	say(segment(syn, 77777, 0, false), segment(ack, 0, 12345, true))
	say(segment(rst, 0, 0, false))
	say(segment(ack, 0, 12345, true), segment(ack, 0, 12345, false))
	// While rings are full of these, a SYN is lost as any packet is, and repeated after a second. A
	// worker that waits for a CPU receives nothing for some hundredths of a second, too.
	var before uint64
	unchanged := 0
	l.within("what was sent is worked off", func() bool {
		s, err := l.gate.Client.Stats(l.ctx)
		if err != nil {
			t.Fatal(err)
		}
		rx := uint64(0)
		for i := range s.Workers {
			rx += s.Workers[i].Rx
		}
		if unchanged++; rx != before {
			before, unchanged = rx, 0
		}
		return unchanged == 30
	})

	for i := range honest {
		began := time.Now()
		conn, err := client.Dial(l.ctx, "tcp", vip)
		if err != nil {
			t.Fatalf("honest connection %d: %v", i, err)
		}
		_, err = io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n")
		if err == nil {
			_, err = io.Copy(io.Discard, conn)
		}
		if took := time.Since(began); err != nil || took > time.Second && took > l.bound(time.Second) {
			t.Errorf("honest connection %d: %v after %v", i, err, took)
		}
		conn.Close()
	}
	states := map[string]int{}
	if err := l.gate.Client.Flows(l.ctx, status.FlowFilter{}, func(f *status.FlowView) error {
		if forged[f.Client.Addr()] {
			states[f.State]++
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("flows of forged addresses, by state: %v", states)
	made := states["SYN_SENT"] + states["SYN_RECV"]
	for state, n := range states {
		if state != "SYN_SENT" && state != "SYN_RECV" && state != "CLOSED" {
			t.Errorf("%d flows are %s", n, state)
		}
	}
	if made < blind*ports/10 {
		t.Errorf("%d half-open flows: too few to say anything", made)
	}
}

// TestStrictReversePath: with proxy.strictReversePath, packets in backends' names from the clients'
// side change nothing, and real connections and datagrams pass: backends are on another interface.
func TestStrictReversePath(t *testing.T) {
	t.Parallel()
	const flows = 20
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}, small: true, damaging: true,
		options: "proxy: {strictReversePath: true}\n"})
	client := l.Clients[0]
	w := openWire(t, client, l.Gateway.Interfaces[0].MAC)
	vip := netip.AddrPortFrom(netip.MustParseAddr(vip4), webPort).String()
	nobody := client.Addr4().As4()
	nobody[3] = 200 // its SYNs are answered, and nobody acknowledges
	for port := range uint16(flows) {
		from := netip.AddrPortFrom(netip.AddrFrom4(nobody), 20000+port).String()
		if err := w.send(headertest.TCP(from, vip, headertest.SYN).Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	states := func() (list []status.FlowView) {
		t.Helper()
		if err := l.gate.Client.Flows(l.ctx, status.FlowFilter{}, func(f *status.FlowView) error {
			if f.Client.Addr() == netip.AddrFrom4(nobody) {
				list = append(list, *f)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return list
	}
	open := states()
	for ; len(open) < flows && l.ctx.Err() == nil; open = states() {
		time.Sleep(10 * time.Millisecond)
	}
	for _, f := range open {
		p := headertest.TCP(f.Backend.String(), f.SNAT.String(), headertest.ACK)
		p.Payload = []byte("forged")
		if err := w.send(p.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	for l.counted("reverse_path") < flows && l.ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	for _, f := range states() {
		if f.State != "SYN_SENT" && f.State != "SYN_RECV" {
			t.Errorf("after a forged segment of its backend, %v is %s", f.Client, f.State)
		}
	}
	conn, err := client.Dial(l.ctx, "tcp", vip)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, conn); n == 0 || err != nil {
		t.Errorf("an answer of %d bytes, %v", n, err)
	}
	if n := l.counted("reverse_path"); n != flows {
		t.Errorf("%d packets dropped as reverse_path, want the %d forged ones", n, flows)
	}
}
