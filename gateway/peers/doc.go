// Package peers carries frames between the gateways of a group: a stream for each ordered pair,
// from an owner of flows to a member, over TCP with mutual TLS 1.3. Packages wire and session of
// gateway/group make and read the frames.
//
// A gateway has a certificate for its name: its own, or one that it signs with the key of an
// authority that the gateways share. A connection is accepted from addresses of members only, and
// nothing that arrives on it is read before TLS has verified the other gateway's certificate. An
// accepted connection lives on when its certificate expires: a new certificate is needed for the
// next connection.
//
// Handshakes wait, in goroutines. A stream never waits: all of them are read and written by one
// thread, which may have another priority than the rest of the process. That is why streams are not
// of gRPC or HTTP/2: their goroutines run on any thread (docs/adr/0044).
package peers

import "net/netip"

// Peer is a gateway of the group.
type Peer struct {
	Name    string         // as in its certificate
	Address netip.AddrPort // its listener; its connections come from the same IP address
}
