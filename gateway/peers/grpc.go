package peers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"sluice.dev/sluice/gateway/group/wire"
)

// WindowBytes is how many bytes of a stream may be on the way to a gateway that does not read them.
const WindowBytes = 1 << 20

// Times and sizes of connections.
const (
	handshakeTimeout = 5 * time.Second
	dialTimeout      = 2 * time.Second
	idleTimeout      = 10 * time.Second // of a connection without a stream
	headerBytes      = 8 << 10
)

// The method of the stream. Its messages are frames, in no other encoding.
const (
	serviceName = "sluice.Group"
	streamName  = "Stream"
)

var description = grpc.StreamDesc{StreamName: streamName, ServerStreams: true, ClientStreams: true}

// Config is the configuration of a Transport.
type Config struct {
	Self  Peer
	Peers []Peer // all others
	Files Files
	// Refused is called with the reason for each connection that was refused, and for files that
	// cannot be used, by any goroutine.
	Refused func(error)
}

// transport is the Transport over gRPC.
type transport struct {
	Config
	certificates certificates
}

// New returns a Transport. An error says that the files cannot be used.
func New(c Config) (Transport, error) {
	t := &transport{Config: c, certificates: certificates{files: c.Files, name: c.Self.Name, failed: c.Refused}}
	_, err := t.certificates.current()
	return t, err
}

// Dial opens a stream to a peer, from the own IP address.
func (t *transport) Dial(ctx context.Context, to Peer) (Stream, error) {
	id, err := t.certificates.current()
	if err != nil {
		return nil, err
	}
	from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: t.Self.Address.Addr().AsSlice()}}
	conn, err := grpc.NewClient("passthrough:///"+to.Address.String(),
		grpc.WithTransportCredentials(credentials.NewTLS(id.client())),
		grpc.WithAuthority(to.Name),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return from.DialContext(ctx, "tcp", address)
		}),
		grpc.WithNoProxy(), grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(0),
		grpc.WithStaticStreamWindowSize(WindowBytes), grpc.WithStaticConnWindowSize(WindowBytes),
		grpc.WithMaxHeaderListSize(headerBytes),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: dialTimeout}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(frames{}), grpc.MaxCallRecvMsgSize(wire.MaxFrame)),
	)
	if err != nil {
		return nil, err
	}
	s, err := conn.NewStream(ctx, &description, "/"+serviceName+"/"+streamName)
	if err != nil {
		_ = conn.Close()
		return nil, reason(to.Name, err)
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	return &stream{raw: s, name: to.Name}, nil
}

// Serve accepts streams of peers.
func (t *transport) Serve(ctx context.Context, l net.Listener, handle func(Peer, Stream) error) error {
	s := grpc.NewServer(
		grpc.Creds(reporting{credentials.NewTLS(t.server()), t.Refused}),
		grpc.ForceServerCodecV2(frames{}), grpc.MaxRecvMsgSize(wire.MaxFrame), grpc.MaxHeaderListSize(headerBytes),
		grpc.StaticStreamWindowSize(WindowBytes), grpc.StaticConnWindowSize(WindowBytes),
		grpc.MaxConcurrentStreams(1), grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTimeout}),
	)
	d := description
	d.Handler = func(_ any, raw grpc.ServerStream) error {
		from, err := t.from(raw.Context())
		if err == nil {
			err = handle(from, &stream{raw: raw, name: from.Name})
		}
		if err != nil {
			return status.Error(codes.Aborted, err.Error())
		}
		return nil
	}
	s.RegisterService(&grpc.ServiceDesc{ServiceName: serviceName, Streams: []grpc.StreamDesc{d}}, nil)
	defer context.AfterFunc(ctx, s.Stop)()
	err := s.Serve(admit(l, t.Peers, t.Refused))
	if ctx.Err() != nil && (err == nil || errors.Is(err, grpc.ErrServerStopped)) {
		return nil
	}
	return err
}

// server returns a configuration that takes the present files for each connection.
func (t *transport) server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			id, err := t.certificates.current()
			if err != nil {
				return nil, err
			}
			return id.server(t.Peers), nil
		},
	}
}

// from returns the peer of an accepted stream.
func (t *transport) from(ctx context.Context) (Peer, error) {
	p, _ := peer.FromContext(ctx)
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return Peer{}, errors.New("no TLS")
	}
	return peerOf(info.State, t.Peers)
}

// stream is a Stream of either end.
type stream struct {
	raw interface {
		SendMsg(m any) error
		RecvMsg(m any) error
	}
	name   string
	buffer []byte
}

// Send transmits a frame.
func (s *stream) Send(frame []byte) error {
	if err := s.raw.SendMsg(frame); err != nil {
		return reason(s.name, err)
	}
	return nil
}

// Receive waits for the next frame.
func (s *stream) Receive() ([]byte, error) {
	if err := s.raw.RecvMsg(&s.buffer); err != nil {
		return nil, reason(s.name, err)
	}
	return s.buffer, nil
}

// reason returns the error of a stream in words that name the other gateway.
func reason(name string, err error) error {
	s := status.Convert(err)
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%s has ended the stream", name)
	case s.Code() == codes.Aborted:
		return fmt.Errorf("%s refuses the stream: %s", name, s.Message())
	}
	return fmt.Errorf("stream with %s: %s", name, s.Message())
}

// reporting are credentials that report failed handshakes of a server.
type reporting struct {
	credentials.TransportCredentials
	refused func(error)
}

// ServerHandshake reports the error of a handshake with the other end's address.
func (r reporting) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := r.TransportCredentials.ServerHandshake(c)
	if err != nil {
		r.refused(fmt.Errorf("connection from %s: %w", c.RemoteAddr(), err))
	}
	return secure, info, err
}

// frames is gRPC's codec of messages that are bytes already: []byte to send, *[]byte to receive.
type frames struct{}

// Name is part of the content type.
func (frames) Name() string { return "sluice" }

// Marshal copies a frame, because gRPC keeps it after the call.
func (frames) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.Copy(v.([]byte), mem.DefaultBufferPool())}, nil
}

// Unmarshal copies a frame into the memory of the one before.
func (frames) Unmarshal(data mem.BufferSlice, v any) error {
	to := v.(*[]byte)
	if n := data.Len(); cap(*to) < n {
		*to = make([]byte, n)
	} else {
		*to = (*to)[:n]
	}
	data.CopyTo(*to)
	return nil
}
