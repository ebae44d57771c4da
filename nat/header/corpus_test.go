package header_test

import (
	"bytes"

	"sluice.dev/sluice/nat/header/headertest"
)

const (
	client4, vip4 = "192.0.2.1:40000", "198.51.100.7:80"
	client6, vip6 = "[2001:db8::1]:40000", "[2001:db8:1::7]:80"
)

// options of six bytes: PadN.
var padding = []byte{1, 4, 0, 0, 0, 0}

// corpus returns valid packets, of every shape that is translated.
func corpus() map[string][]byte {
	tcp4 := func() *headertest.Packet { return headertest.TCP(client4, vip4, headertest.SYN) }
	tcp6 := func() *headertest.Packet { return headertest.TCP(client6, vip6, headertest.SYN) }
	udp4 := func() *headertest.Packet { return headertest.UDP(client4, vip4, "hello") }
	udp6 := func() *headertest.Packet { return headertest.UDP(client6, vip6, "hello") }
	with := func(p *headertest.Packet, change func(*headertest.Packet)) []byte {
		change(p)
		return p.Bytes()
	}
	long := string(bytes.Repeat([]byte("0123456789abcdef"), 8))
	big4 := headertest.UDP(client4, vip4, long).Bytes()
	big6 := headertest.UDP(client6, vip6, long).Bytes()
	tcpBig4 := with(tcp4(), func(p *headertest.Packet) { p.Payload = []byte(long) })
	return map[string][]byte{
		"tcp4": tcp4().Bytes(),
		"tcp4 options": with(tcp4(), func(p *headertest.Packet) {
			p.TCPOptions = []byte{2, 4, 5, 0xb4, 4, 2, 1, 3, 3,
				7}
		}),
		"tcp4 payload": with(tcp4(),
			func(p *headertest.Packet) { p.Flags = headertest.ACK | headertest.PSH; p.Payload = []byte("GET /") }),
		"tcp4 vlan":    with(tcp4(), func(p *headertest.Packet) { p.VLAN = []uint16{100} }),
		"tcp4 qinq":    with(tcp4(), func(p *headertest.Packet) { p.VLAN = []uint16{7, 100} }),
		"tcp4 ip opts": with(tcp4(), func(p *headertest.Packet) { p.Options = []byte{1, 148, 4, 0, 0, 0} }),
		"udp4":         udp4().Bytes(),
		"udp4 empty":   with(udp4(), func(p *headertest.Packet) { p.Payload = nil }),
		"udp4 nosum":   with(udp4(), func(p *headertest.Packet) { p.NoChecksum = true }),
		"udp4 df":      with(udp4(), func(p *headertest.Packet) { p.DF = true }),
		"echo4":        headertest.Echo("192.0.2.1", "198.51.100.7", 77, 1, false).Bytes(),
		"reply4":       headertest.Echo("192.0.2.1", "198.51.100.7", 77, 1, true).Bytes(),
		"unreachable4": headertest.ICMPError("203.0.113.9", "198.51.100.7", 3, 4, 1400, tcp4().Bytes(), 28).Bytes(),
		"first4":       headertest.Split(big4, 64, 0xbeef)[0],
		"later4":       headertest.Split(big4, 64, 0xbeef)[1],
		"last4":        headertest.Split(big4, 64, 0xbeef)[2],
		"first tcp4":   headertest.Split(tcpBig4, 24, 0xbeef)[0],
		"later tcp4":   headertest.Split(tcpBig4, 24, 0xbeef)[1],
		"sctp4 init":   headertest.SCTP(client4, vip4, 1).Bytes(),
		"sctp4 vlan": with(headertest.SCTP(client4, vip4, 10),
			func(p *headertest.Packet) { p.VLAN = []uint16{100} }),
		"sctp4 data": with(headertest.SCTP(client4, vip4, 0),
			func(p *headertest.Packet) { p.Payload = []byte("odd payload") }),
		"sctp4 padded": with(headertest.SCTP(client4, vip4, 0),
			func(p *headertest.Packet) { p.Payload = []byte("x") }),
		"sctp6 initack": headertest.SCTP(client6, vip6, 2).Bytes(),
		"sctp6 abort":   headertest.SCTP(client6, vip6, 6).Bytes(),
		"sctp6 atomic": with(headertest.SCTP(client6, vip6, 8), func(p *headertest.Packet) {
			p.Extensions = []headertest.Extension{{Type: 44, Data: []byte{0, 0, 1, 2, 3, 4}}}
		}),
		"unreachable sctp4": headertest.ICMPError("203.0.113.9", "198.51.100.7", 3, 3, 0, headertest.SCTP(client4, vip4,
			1).Bytes(), 28).Bytes(),
		"tcp6":      tcp6().Bytes(),
		"tcp6 vlan": with(tcp6(), func(p *headertest.Packet) { p.VLAN = []uint16{100} }),
		"tcp6 hopbyhop": with(tcp6(),
			func(p *headertest.Packet) { p.Extensions = []headertest.Extension{{Type: 0, Data: padding}} }),
		"tcp6 chain": with(tcp6(), func(p *headertest.Packet) {
			p.Extensions = []headertest.Extension{{Type: 0, Data: padding},
				{Type: 60, Data: append(padding, 0x1e, 6, 0, 0, 0, 0, 0, 0)},
				{Type: 43, Data: []byte{4, 0, 0, 0, 0, 0}}}
		}),
		"udp6": udp6().Bytes(),
		"atomic6": with(udp6(), func(p *headertest.Packet) {
			p.Extensions = []headertest.Extension{{Type: 44, Data: []byte{0, 0, 1, 2, 3, 4}}}
		}),
		"echo6":        headertest.Echo("2001:db8::1", "2001:db8:1::7", 77, 1, false).Bytes(),
		"unreachable6": headertest.ICMPError("2001:db8:9::9", "2001:db8:1::7", 2, 0, 1400, udp6().Bytes(), -1).Bytes(),
		"first6":       headertest.Split(big6, 64, 0xdeadbeef)[0],
		"later6":       headertest.Split(big6, 64, 0xdeadbeef)[1],
	}
}
