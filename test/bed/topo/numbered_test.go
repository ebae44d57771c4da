//go:build root

package topo

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"
)

// TestNumbered: what is lost and what comes twice is counted, with a rate and without, and nothing
// else is.
func TestNumbered(t *testing.T) {
	n := build(t, Config{})
	reach(t, n.Clients[0], numberedServer(t, n.Backends[0]))
	for name, rate := range map[string]int{"a hundred under way": 0, "by the clock": 250} {
		// A socket of its own has room for what one load sends while its reader does not run.
		server := numberedServer(t, n.Backends[0])
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			load, err := n.Clients[0].Number(NumberedLoad{From: n.Clients[0].Addr4(), Rate: rate, To: server})
			if err != nil {
				t.Fatal(err)
			}
			waitFor(t, "500 answers", func() bool { return load.Answered() > 500 })
			sent, missing, repeated, err := load.Finish()
			if missing != 1 || repeated != 1 || sent <= 500 || err != nil {
				t.Errorf("of %d datagrams %d lost, want 1, %d repeated, want 1, %v", sent, missing, repeated, err)
			}
		})
	}
}

// reach waits until the kernels on the way know their neighbours. If the first request for a
// neighbour is lost, the next follows after a second, and of the datagrams that wait only 277 fit
// into the queue (unres_qlen_bytes).
func reach(t *testing.T, from *Host, to netip.AddrPort) {
	t.Helper()
	conn, err := from.Dial(t.Context(), "udp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var b [2048]byte
	waitFor(t, "an answer", func() bool {
		_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		_, failed := conn.Write(b[:datagramBytes])
		_, err := conn.Read(b[:])
		clear(b[:])
		return failed == nil && err == nil
	})
}

// numberedServer answers datagrams, one of them not and one twice.
func numberedServer(t *testing.T, h *Host) netip.AddrPort {
	t.Helper()
	server, err := h.ListenPacket("udp", netip.AddrPortFrom(h.Addr4(), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	const lost, twice = 7, 9
	go func() {
		var b [2048]byte
		for {
			got, from, err := server.ReadFrom(b[:])
			if err != nil {
				return
			}
			answer := append([]byte("backend "), b[:got]...)
			switch binary.BigEndian.Uint64(b[:]) {
			case lost:
				continue
			case twice:
				write(server, answer, from)
			}
			write(server, answer, from)
		}
	}()
	return server.LocalAddr().(*net.UDPAddr).AddrPort()
}

func write(c net.PacketConn, b []byte, to net.Addr) { _, _ = c.WriteTo(b, to) }
