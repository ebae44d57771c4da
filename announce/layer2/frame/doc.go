// Package frame parses and makes the frames by which hosts on a link resolve addresses: ARP (RFC
// 826) for IPv4, and neighbour discovery (RFC 4861) for IPv6. Both have the same two functions, so
// one Packet represents both:
//
//	                    asks for an address     claims that the sender has an address
//	ARP                 request                 request, reply: the sender's address
//	neighbour discovery solicitation            advertisement: the target
//
// Frames are untagged Ethernet: a socket on a VLAN device sees them without the tag.
package frame
