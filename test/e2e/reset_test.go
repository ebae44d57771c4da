//go:build root

package e2e

import (
	"errors"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// TestUnknownConnection: the gateway has forgotten a connection, as one does that lost its table or
// got the connection from another one. Its client learns so with the next segment that it sends.
func TestUnknownConnection(t *testing.T) {
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}, small: true})
	for _, vip := range []string{vip4, vip6} {
		conn, err := l.Clients[0].Dial(l.ctx, "tcp", at(vip, webPort).String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		// A first request shows that the connection stands, and its answer is for reading.
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1<<16)
		if _, err := conn.Read(b); err != nil {
			t.Fatal(err)
		}
		if n, err := l.gate.Client.DeleteFlows(l.ctx, status.FlowFilter{}, true); err != nil || n == 0 {
			t.Fatalf("%d flows forgotten, %v", n, err)
		}
		began := time.Now()
		_ = conn.SetDeadline(began.Add(machine.Slower(time.Second)))
		// An ACK of the first answer may have been late, and reset: then the request is refused.
		if _, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err == nil {
			_, err = io.Copy(io.Discard, conn)
		}
		if !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s: the client reads %v after %v, want a reset", vip, err, time.Since(began))
		}
		t.Logf("%s: reset after %v", vip, time.Since(began))
	}
}
