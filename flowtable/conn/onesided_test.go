package conn

import (
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
)

// TestOneSided: the states of a flow of which only the client's packets are seen.
func TestOneSided(t *testing.T) {
	const (
		syn, ack, fin = header.TCPSYN, header.TCPACK, header.TCPFIN | header.TCPACK
		rst           = header.TCPRST
		data          = 1 << 7 // with payload
	)
	pause := Ticks(TicksOf(2 * time.Second))
	timeouts := DefaultTimeouts()
	lives, err := timeouts.Lifetimes()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		packets []uint8 // one every two seconds
		state   State
		idle    time.Duration // since the packet that the flow's age counts from
		lives   time.Duration // without further packets
	}{
		{"SYN", []uint8{syn}, SynSeen, 0, timeouts.SynSeen},
		{"repeated SYN", []uint8{syn, syn, syn}, SynSeen, 4 * time.Second, timeouts.SynSeen},
		{"handshake", []uint8{syn, ack}, Unconfirmed, 0, timeouts.Established},
		{"in the middle", []uint8{ack}, Unconfirmed, 0, timeouts.Established},
		{"refreshed", []uint8{ack, ack, ack | data}, Unconfirmed, 0, timeouts.Established},
		{"SYN on an open connection", []uint8{syn, ack, syn}, Unconfirmed, 2 * time.Second, timeouts.Established},
		{"FIN", []uint8{syn, ack, fin}, Unconfirmed, 0, timeouts.ResetEstablished},
		{"ACKs after FIN", []uint8{syn, ack, fin, ack, ack}, Unconfirmed, 0, timeouts.ResetEstablished},
		{"data after FIN", []uint8{syn, ack, fin, ack | data}, Unconfirmed, 0, timeouts.Established},
		{"SYN after FIN", []uint8{syn, ack, fin, syn}, SynSeen, 0, timeouts.SynSeen},
		{"RST", []uint8{syn, ack, rst}, Unconfirmed, 0, timeouts.ResetEstablished},
		{"ACK after RST", []uint8{syn, ack, rst, ack}, Unconfirmed, 2 * time.Second, timeouts.ResetEstablished},
		{"data after RST", []uint8{syn, ack, rst, ack | data}, Unconfirmed, 0, timeouts.Established},
		{"RST after FIN", []uint8{syn, ack, fin, rst, ack}, Unconfirmed, 2 * time.Second, timeouts.ResetEstablished},
		{"RST before an answer", []uint8{syn, rst}, SynSeen, 2 * time.Second, timeouts.SynSeen},
		{"SYN after that", []uint8{syn, rst, syn}, SynSeen, 4 * time.Second, timeouts.SynSeen},
		{"SYN-ACK", []uint8{syn | ack}, SynSeen, 0, timeouts.SynSeen},
	} {
		now := Ticks(1000)
		m := Born(header.ProtoTCP, now)
		for i, p := range tt.packets {
			if i > 0 {
				now += pause
			}
			m = m.ObserveOneSided(Segment{Flags: p &^ data, Data: p&data != 0}, now)
		}
		if m.State() != tt.state || Span(m.Seen(), now) != tt.idle {
			t.Errorf("%s: %v, seen %v ago; want %v, %v", tt.name, m.State(), Span(m.Seen(), now), tt.state, tt.idle)
		}
		if got := time.Duration(lives[m.Life()]-RefreshTicks) * Tick; got != tt.lives {
			t.Errorf("%s: lives %v, want %v", tt.name, got, tt.lives)
		}
		if m.State().Assured() {
			t.Errorf("%s: stands", tt.name)
		}
	}
	open := Born(header.ProtoTCP, 1000).ObserveOneSided(Segment{Flags: ack}, 1000)
	m := open.ResetOneSided(1000 + pause)
	if !m.Reset() || m.ResetBy() != ReplySide || m.Seen() != 1000+pause || m.ResetOneSided(1000+2*pause) != m {
		t.Errorf("reset by the gateway: %x", m)
	}
	if m = m.ObserveOneSided(Segment{Flags: ack, Data: true}, 1000+pause); m != open.At(1000+pause) {
		t.Errorf("data after that: %x", m)
	}
	m = open.ObserveOneSided(Segment{Flags: rst}, 1000)
	if m.ResetOneSided(1000+pause) != m {
		t.Errorf("reset by the client, and then by the gateway: %x", m)
	}
	u := Born(header.ProtoUDP, 1000)
	for i := range 40 {
		u = u.ObserveOneSided(Segment{}, 1000+Ticks(i)*pause)
	}
	if u.State() != UDPNew || u.Seen() != 1000+39*pause {
		t.Errorf("datagrams: %v, seen at %d", u.State(), u.Seen())
	}
}
