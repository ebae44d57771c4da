// Package peers carries frames between the gateways of a group: a stream for each ordered pair,
// from an owner of flows to a member, over gRPC with mutual TLS 1.3. Packages wire and session of
// gateway/group make and read the frames.
//
// A gateway has a certificate of its own, for its name: from a file, or made by itself with the key
// of an authority that the gateways share. A connection is accepted from addresses of
// members only, and nothing that arrives on it is read before TLS has verified the other gateway's
// certificate. An accepted connection lives on when its certificate expires: a new certificate is
// needed for the next connection.
package peers

import (
	"context"
	"net"
	"net/netip"
)

// Peer is a gateway of the group.
type Peer struct {
	Name    string         // as in its certificate
	Address netip.AddrPort // its listener; its connections come from the same IP address
}

// Stream is one end of a stream. Send and Receive may be called at the same time, each by one
// goroutine.
type Stream interface {
	// Send transmits a frame of 1 to wire.MaxFrame bytes. It waits while the other gateway does not
	// read: then about WindowBytes are on the way.
	Send(frame []byte) error
	// Receive waits for the next frame. It is valid until the next call.
	Receive() (frame []byte, err error)
}

// Transport opens and accepts streams.
type Transport interface {
	// Dial opens a stream to a peer. The stream ends with ctx.
	Dial(ctx context.Context, to Peer) (Stream, error)
	// Serve accepts streams of peers on l until ctx ends. It calls handle in a goroutine for each;
	// the stream ends when handle returns, and the other gateway is told the error.
	Serve(ctx context.Context, l net.Listener, handle func(from Peer, s Stream) error) error
}
