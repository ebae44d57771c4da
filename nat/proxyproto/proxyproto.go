// Package proxyproto writes headers of the PROXY protocol, version 2 (HAProxy, "The PROXY
// protocol", section 2.2):
//
//	bytes  0 to 11  signature
//	byte   12       version 2, command (LOCAL 0, PROXY 1)
//	byte   13       address family (IPv4 1, IPv6 2), transport (stream 1, datagram 2)
//	bytes 14 and 15 length of the rest, network byte order
//	then            source address, destination address, source port, destination port
//
// It writes no TLVs.
package proxyproto

import (
	"encoding/binary"

	"sluice.dev/sluice/nat/header"
)

// Lengths of headers, in bytes: before the addresses, over IPv4 and over IPv6.
const (
	fixedBytes = 16
	Bytes4     = fixedBytes + 2*4 + 2*2
	Bytes6     = fixedBytes + 2*16 + 2*2
)

const (
	signature    = "\r\n\r\n\x00\r\nQUIT\n"
	versionProxy = 0x21
	overIPv4     = 0x10
	overIPv6     = 0x20
	stream       = 1
	datagram     = 2
)

// Local is the header of a connection that the gateway makes for itself, such as a health check:
// the receiver must use the addresses of the connection.
const Local = signature + "\x20\x00\x00\x00"

// Bytes returns the length of the header of a connection, in bytes.
func Bytes(v6 bool) uint32 {
	if v6 {
		return Bytes6
	}
	return Bytes4
}

// Put writes the header of a TCP connection or a UDP datagram from the source to the destination of
// client, the tuple with which the client sends, and returns its length in bytes. b must have room
// for Bytes.
func Put(b []byte, client *header.Tuple) int {
	copy(b, signature)
	b[12] = versionProxy
	transport := uint8(stream)
	if client.Proto == header.ProtoUDP {
		transport = datagram
	}
	if client.V6 {
		h := (*[Bytes6]byte)(b)
		h[13] = overIPv6 | transport
		binary.BigEndian.PutUint16(h[14:], Bytes6-fixedBytes)
		*(*[16]byte)(h[16:]) = client.Src
		*(*[16]byte)(h[32:]) = client.Dst
		binary.BigEndian.PutUint16(h[48:], client.SrcPort)
		binary.BigEndian.PutUint16(h[50:], client.DstPort)
		return Bytes6
	}
	h := (*[Bytes4]byte)(b)
	h[13] = overIPv4 | transport
	binary.BigEndian.PutUint16(h[14:], Bytes4-fixedBytes)
	*(*[4]byte)(h[16:]) = client.Src.As4()
	*(*[4]byte)(h[20:]) = client.Dst.As4()
	binary.BigEndian.PutUint16(h[24:], client.SrcPort)
	binary.BigEndian.PutUint16(h[26:], client.DstPort)
	return Bytes4
}
