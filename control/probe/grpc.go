package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"

	"google.golang.org/protobuf/encoding/protowire"

	"sluice.dev/sluice/control/objects"
)

// The messages of grpc.health.v1.Health/Check
// (github.com/grpc/grpc-proto/blob/master/grpc/health/v1/health.proto): a request with a service,
// an answer with a status.
const (
	healthMethod   = "/grpc.health.v1.Health/Check"
	requestService = 1 // string
	answerStatus   = 1 // enum
	statusServing  = 1
)

var healthStatus = map[uint64]string{0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}

// askGRPC calls grpc.health.v1.Health/Check, one request and one answer over HTTP/2 without TLS
// (github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
func askGRPC(ctx context.Context, conn net.Conn, to netip.AddrPort, c *objects.Check) (string, error) {
	t := &http.Transport{
		DisableCompression: true, MaxResponseHeaderBytes: 16 << 10, Protocols: new(http.Protocols),
		DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		HTTP2:       &http.HTTP2Config{MaxReceiveBufferPerStream: maxBytes, MaxReceiveBufferPerConnection: maxBytes},
	}
	t.Protocols.SetUnencryptedHTTP2(true)
	defer t.CloseIdleConnections()
	var message []byte
	if c.Service != "" {
		message = protowire.AppendTag(message, requestService, protowire.BytesType)
		message = protowire.AppendString(message, c.Service)
	}
	body := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))) // not compressed
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+to.String()+healthMethod,
		bytes.NewReader(append(body, message...)))
	if err != nil {
		return "", err
	}
	q.Header.Set("Content-Type", "application/grpc")
	q.Header.Set("TE", "trailers")
	q.Header.Set("User-Agent", "sluice-health-check")
	a, err := t.RoundTrip(q)
	if err != nil {
		return "", err
	}
	defer a.Body.Close()
	const most = 4096
	answer, err := io.ReadAll(io.LimitReader(a.Body, most))
	if err != nil {
		return "", err
	}
	return checkGRPC(a, answer)
}

func checkGRPC(a *http.Response, body []byte) (string, error) {
	if a.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %d", a.StatusCode)
	}
	code := a.Trailer.Get("Grpc-Status")
	if code == "" {
		code = a.Header.Get("Grpc-Status") // an answer without a message has no trailers
	}
	if code != "0" {
		return "", fmt.Errorf("grpc status %s %s", clip(code), clip(a.Trailer.Get("Grpc-Message")+
			a.Header.Get("Grpc-Message")))
	}
	const prefix = 5
	if len(body) < prefix || body[0] != 0 || uint64(len(body)) != prefix+uint64(binary.BigEndian.Uint32(body[1:])) {
		return "", errors.New("no grpc message")
	}
	status := uint64(0)
	for b := body[prefix:]; len(b) > 0; {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return "", errors.New("no message of grpc.health.v1")
		}
		b = b[n:]
		if number == answerStatus && kind == protowire.VarintType {
			status, n = protowire.ConsumeVarint(b)
		} else {
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return "", errors.New("no message of grpc.health.v1")
		}
		b = b[n:]
	}
	name, known := healthStatus[status]
	if !known {
		name = fmt.Sprintf("status %d", status)
	}
	if status != statusServing {
		return "", errors.New(name)
	}
	return name, nil
}
