package bgp

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/ipv4"

	"sluice.dev/sluice/announce/kinds"
)

// forge sends a BFD control packet in state Down from a router's address to this side's, with a
// TTL.
func forge(t *testing.T, from, to netip.Addr, port uint16, ttl int, multiplier byte, transmit time.Duration) {
	t.Helper()
	c, err := net.ListenPacket("udp4", from.String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := ipv4.NewPacketConn(c).SetTTL(ttl); err != nil {
		t.Fatal(err)
	}
	µs := uint32(transmit / time.Microsecond)
	packet := []byte{0x20, 0x40, multiplier, 24, 1, 2, 3, 4, 0, 0, 0, 0, byte(µs >> 24), byte(µs >> 16), byte(µs >> 8),
		byte(µs), 0, 0, 0x27, 0x10, 0, 0, 0, 0}
	address, err := net.ResolveUDPAddr("udp4", net.JoinHostPort(to.String(), strconv.Itoa(int(port))))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WriteTo(packet, address); err != nil {
		t.Fatal(err)
	}
}

// TestForgedBFD: forged packets of a router that has no BFD, with any TTL, end no BGP session.
// Their intervals are soon forgotten, and a problem reports that BFD is configured and not up.
func TestForgedBFD(t *testing.T) {
	port := closedPort(t)
	r := newRouter(t, port, false)
	s, w := newSpeaker(t, port, false)
	s.bfdPort = port
	for _, p := range w.Set.Peers {
		p.BFD = &kinds.BFD{Receive: 20 * time.Millisecond, Transmit: 20 * time.Millisecond, Multiplier: 3}
		p.Ref = kinds.Ref{Kind: "BGPPeer", Name: p.Name}
	}
	r.until(2, s, w)
	s.Apply(w)
	states := func() (list []string) {
		for _, p := range s.Report().Peers {
			list = append(list, p.BFD)
		}
		return list
	}
	forge(t, addresses[0], sources[0], port, 255, 3, 20*time.Millisecond)
	forge(t, addresses[1], sources[1], port, 64, 3, 20*time.Millisecond)
	for end := time.Now().Add(5 * time.Second); states()[0] != "init"; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("a packet of a host of the link is not taken: %q", states())
		}
	}
	forge(t, addresses[0], sources[0], port, 255, 255, 20*time.Millisecond)
	for end := time.Now().Add(bfdTimeout + 500*time.Millisecond); time.Now().Before(end); {
		if n := r.paths(); n != 2 {
			t.Fatalf("the router has %d paths, want 2: %+v", n, s.Report().Peers)
		}
		if got := states(); got[1] != "down" {
			t.Fatalf("a packet from behind a router is taken: %q", got)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if got := states(); got[0] != "down" {
		t.Errorf("BFD that a forged packet began has not expired: %q", got)
	}
	said := 0
	for _, p := range s.Report().Problems {
		if p.Reason == kinds.BFDNotUp && strings.Contains(p.Note, "BFD with") {
			said++
		}
	}
	if said != 2 {
		t.Errorf("BFD is not up, and problems are %+v", s.Report().Problems)
	}
}
