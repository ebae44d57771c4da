package stateful

import (
	"encoding/binary"
	"net/netip"

	"sluice.dev/sluice/bench/framing"
	"sluice.dev/sluice/nat/header"
)

// Neighbours: the engine answers for every address of its pool and for Config.Own, and resolves its
// gateway. RFC 826; RFC 4861, sections 4.3, 4.4 and 4.6.1.
const (
	arpBytes   = 28
	arpRequest = 1
	arpReply   = 2

	neighbourSolicit     = 135
	neighbourAdvert      = 136
	neighbourBytes       = 24 // without options
	linkAddressOption    = 8  // bytes of one option
	optionSourceLink     = 1
	optionTargetLink     = 2
	solicitedAndOverride = 0x60000000

	askEveryMS = 100
)

// resolve completes the Ethernet header of outgoing packets.
func (e *Engine) resolve(mac [6]byte) {
	copy(e.ethernet[:], mac[:])
	e.resolved = true
}

// answersFor reports whether the engine answers requests for an address.
func (e *Engine) answersFor(address []byte) bool {
	if _, ok := e.localNumber(address); ok {
		return true
	}
	own := wireAddress(e.c.Own)
	return e.c.Own.IsValid() && string(own[16-len(address):]) == string(address)
}

// asker is the source address of requests: Own, or the pool's first address.
func (e *Engine) asker() netip.Addr {
	if e.c.Own.IsValid() {
		return e.c.Own
	}
	return e.mine.First
}

// ask requests the gateway's MAC, periodically until it is known.
func (e *Engine) ask() {
	if e.askedAt != 0 && e.ms-e.askedAt < askEveryMS {
		return
	}
	addr, ok := e.pool.Get()
	if !ok || e.txN == txBatch {
		if ok {
			e.pool.Put(addr)
		}
		return
	}
	e.askedAt = e.ms
	b := e.mem[addr : addr+128]
	from, to := wireAddress(e.asker()), wireAddress(e.c.Gateway)
	n := 0
	if e.six {
		n = e.solicitation(b, from, to)
	} else {
		for i := range 6 {
			b[i] = 0xff
		}
		n = e.arpMessage(b, arpRequest, from[12:], [6]byte{}, to[12:])
	}
	e.tx[e.txN].Addr = addr
	e.sent(n)
}

// arpMessage writes everything but the Ethernet destination.
func (e *Engine) arpMessage(b []byte, operation uint16, from []byte, mac [6]byte, to []byte) int {
	copy(b[6:], e.c.MAC[:])
	copy(b[12:], []byte{etherARP >> 8, etherARP & 0xff, 0, 1, header.EtherTypeIPv4 >> 8, header.EtherTypeIPv4 & 0xff, 6,
		4})
	binary.BigEndian.PutUint16(b[20:], operation)
	copy(b[22:], e.c.MAC[:])
	copy(b[28:], from)
	copy(b[32:], mac[:])
	copy(b[38:], to)
	return header.EthernetBytes + arpBytes
}

// arp handles a frame that is not of the engine's address family.
func (e *Engine) arp(frame []byte) {
	if e.six || len(frame) < header.EthernetBytes+arpBytes || binary.BigEndian.Uint16(frame[12:]) != etherARP {
		e.stats.Packets.Ignored++
		return
	}
	sender, mac, target := frame[28:32], [6]byte(frame[22:28]), frame[38:42]
	e.learn(sender, mac)
	if binary.BigEndian.Uint16(frame[20:]) != arpRequest || !e.answersFor(target) {
		return
	}
	if b, addr := e.bare(); b != nil {
		copy(b, mac[:])
		e.tx[e.txN].Addr = addr
		e.sent(e.arpMessage(b, arpReply, target, mac, sender))
	}
}

// bare returns an empty frame for a packet without the headers that take writes.
func (e *Engine) bare() ([]byte, uint64) {
	if e.txN == txBatch && e.transmit() == 0 {
		return nil, 0
	}
	addr, ok := e.pool.Get()
	if !ok {
		return nil, 0
	}
	return e.mem[addr : addr+128], addr
}

func (e *Engine) learn(address []byte, mac [6]byte) {
	gateway := wireAddress(e.c.Gateway)
	if e.c.Gateway.IsValid() && e.c.GatewayMAC == ([6]byte{}) && string(address) == string(gateway[16-len(address):]) {
		e.resolve(mac)
	}
}

// neighbour handles a neighbour solicitation or advertisement, and reports whether the frame was
// one.
func (e *Engine) neighbour(frame []byte) bool {
	const at = header.EthernetBytes + header.IPv6Bytes
	if !e.six || len(frame) < at+neighbourBytes || frame[header.EthernetBytes+6] != header.ProtoICMPv6 {
		return false
	}
	kind, target := frame[at], frame[at+8:at+24]
	if kind != neighbourSolicit && kind != neighbourAdvert || frame[header.EthernetBytes+7] != 255 {
		return false
	}
	var mac [6]byte
	option := frame[at+neighbourBytes:]
	if len(option) >= linkAddressOption && (option[0] == optionSourceLink || option[0] == optionTargetLink) &&
		option[1] == 1 {
		mac = [6]byte(option[2:8])
	}
	if mac == ([6]byte{}) {
		mac = [6]byte(frame[6:12])
	}
	source := frame[header.EthernetBytes+8 : header.EthernetBytes+24]
	if kind == neighbourAdvert {
		e.learn(target, mac)
		return true
	}
	e.learn(source, mac)
	if e.answersFor(target) {
		if b, addr := e.bare(); b != nil {
			copy(b, mac[:])
			e.tx[e.txN].Addr = addr
			e.sent(e.neighbourMessage(b, neighbourAdvert, optionTargetLink, target, source, target))
		}
	}
	return true
}

// solicitation writes a request to the solicited-node address (RFC 4291, section 2.7.1).
func (e *Engine) solicitation(b []byte, from, to [16]byte) int {
	group := [16]byte{0: 0xff, 1: 0x02, 11: 1, 12: 0xff}
	copy(group[13:], to[13:])
	copy(b, []byte{0x33, 0x33})
	copy(b[2:], group[12:]) // RFC 2464, section 7
	return e.neighbourMessage(b, neighbourSolicit, optionSourceLink, from[:], group[:], to[:])
}

// neighbourMessage writes everything but the Ethernet destination.
func (e *Engine) neighbourMessage(b []byte, kind, option byte, from, to, target []byte) int {
	const n = neighbourBytes + linkAddressOption
	copy(b[6:], e.c.MAC[:])
	binary.BigEndian.PutUint16(b[12:], header.EtherTypeIPv6)
	h := b[header.EthernetBytes : header.EthernetBytes+header.IPv6Bytes]
	framing.IPv6(h, header.ProtoICMPv6, 255, from, to, n)
	m := b[header.EthernetBytes+header.IPv6Bytes : header.EthernetBytes+header.IPv6Bytes+n]
	clear(m)
	m[0] = kind
	if kind == neighbourAdvert {
		binary.BigEndian.PutUint32(m[4:], solicitedAndOverride)
	}
	copy(m[8:], target)
	m[24], m[25] = option, 1
	copy(m[26:], e.c.MAC[:])
	framing.Seal(m, h[8:], header.ProtoICMPv6)
	return header.EthernetBytes + header.IPv6Bytes + n
}
