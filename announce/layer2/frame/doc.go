// Package frame reads and makes the frames by which neighbours of one link find each other's
// hardware addresses: ARP (RFC 826) for IPv4, and neighbour discovery (RFC 4861) for IPv6. Both say
// the same two things, so there is one Packet for both:
//
//	                    asks for an address     says that an address is the sender's
//	ARP                 request                 request, reply: the sender's address
//	neighbour discovery solicitation            advertisement: the target
//
// Frames are Ethernet, untagged: a socket on a VLAN device sees them so.
package frame
