//go:build root

package stateful

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice.dev/sluice/test/bed/topo"
)

// wired is a network whose wire between client and gateway is used: an engine on one end, Linux on
// the other.
func wired(t *testing.T) *topo.Net {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: network namespaces, XDP")
	}
	n, err := topo.New(topo.Config{Direct: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// againstLinux is a profile whose pools are in the wire's networks.
func againstLinux(t *testing.T, six bool, clients, servers string) *Profile {
	t.Helper()
	const mebibyte = 1 << 20
	p := smallProfile(t, page(), Template{Name: "mebibyte", Protocol: ProtocolTCP, Port: 82, Share: 0.1, Close: Client,
		Steps: []Step{
			{From: Client, Size: mebibyte}, {From: Server, Size: mebibyte},
			{From: Client, Size: 3, After: 5 * time.Millisecond}, {From: Server, Size: 40},
		}})
	prefix := "10.71.0."
	if six {
		prefix = "fd71::"
	}
	var err error
	first, last, _ := bytes.Cut([]byte(clients), []byte("-"))
	if p.Clients, err = ParsePool(prefix+string(first)+"-"+prefix+string(last), "20000-29999"); err != nil {
		t.Fatal(err)
	}
	if p.Servers, err = ParsePool(prefix+servers, ""); err != nil {
		t.Fatal(err)
	}
	p.CPS = 300
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	return p
}

func families(t *testing.T, f func(t *testing.T, six bool)) {
	for _, six := range []bool{false, true} {
		t.Run(fmt.Sprintf("six=%v", six), func(t *testing.T) { f(t, six) })
	}
}

// start runs an engine on a port until the test ends.
func start(t *testing.T, port Port, c Config) *driver {
	t.Helper()
	l, err := openLine(t.Context(), &port)
	if err != nil {
		t.Fatal(err)
	}
	e, err := l.engine(c)
	if err != nil {
		t.Fatal(errors.Join(err, l.close()))
	}
	d := drive(e)
	t.Cleanup(func() {
		d.end()
		if n := e.Frames(); n != lineFrames {
			t.Errorf("%d frames of %d", n, lineFrames)
		}
		if err := l.close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// TestAgainstLinuxServer: Linux serves the engine's clients, and its stack reports no errors.
func TestAgainstLinuxServer(t *testing.T) {
	families(t, func(t *testing.T, six bool) {
		n := wired(t)
		p := againstLinux(t, six, "20-23", "1")
		group, ctx := errgroup.WithContext(t.Context())
		var listeners []net.Listener
		for i := range p.Templates {
			template := &p.Templates[i]
			listener, err := n.Gateway.Listen("tcp", netip.AddrPortFrom(p.Servers.First, template.Port).String())
			if err != nil {
				t.Fatal(err)
			}
			listeners = append(listeners, listener)
			group.Go(func() error { return serve(ctx, listener, template) })
		}
		d := start(t, Port{Interface: "eth0", Namespace: n.Clients[0]}, Config{Role: Client, Profile: p,
			Gateway: p.Servers.First, Targets: p.Servers})
		wait(t, d, func(c Counts) bool { return c.Opened >= 300 })
		d.stopOpening.Store(true)
		wait(t, d, func(c Counts) bool { return c.Active == 0 })
		for _, l := range listeners {
			l.Close()
		}
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
		seen, packets := d.seen()
		for i, c := range seen {
			if c.Completed != c.Opened || c.Failures()+c.Violations+c.Retupled != 0 || c.Completed == 0 {
				t.Errorf("%s: %+v, packets %+v", p.Templates[i].Name, c, packets)
			}
		}
	})
}

// wait waits until a driver's published counts satisfy a condition.
func wait(t *testing.T, d *driver, so func(Counts) bool) {
	t.Helper()
	const limit = 20 * time.Second
	for began := time.Now(); !so(d.total()); {
		if time.Since(began) > limit {
			_, packets := d.seen()
			t.Fatalf("after %s: %+v, packets %+v", limit, d.total(), packets)
		}
		if err := topo.Pause(t.Context(), 5*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
}

// serve plays the server's side of a template on every connection.
func serve(ctx context.Context, l net.Listener, template *Template) error {
	group, _ := errgroup.WithContext(ctx)
	for {
		c, err := l.Accept()
		if err != nil {
			return group.Wait() // the listener was closed
		}
		group.Go(func() error {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(20 * time.Second)) // cannot fail on an open connection
			remote := c.RemoteAddr().(*net.TCPAddr).AddrPort()
			if err := converse(c, template, Server, 1, remote); err != nil {
				return fmt.Errorf("server of %s, from %s: %w", template.Name, remote, err)
			}
			return nil
		})
	}
}

// converse plays one side of a template over a Linux connection: the received data must have the
// hash of the template's.
func converse(c net.Conn, template *Template, side Side, server uint32, client netip.AddrPort) error {
	tag := Tag{Server: server, Peer: peerHash(wireAddress(client.Addr().Unmap()), client.Port())}
	for k := range template.Steps {
		s := &template.Steps[k]
		if s.From == side {
			if err := topo.Pause(context.Background(), s.After); err != nil {
				return err
			}
			if _, err := c.Write(template.message(k, tag)); err != nil {
				return err
			}
			continue
		}
		got := sha256.New()
		if _, err := io.CopyN(got, c, int64(s.Size)); err != nil {
			return fmt.Errorf("step %d: %w", k, err)
		}
		if want := sha256.Sum256(template.message(k, tag)); !bytes.Equal(got.Sum(nil), want[:]) {
			return fmt.Errorf("step %d: %d bytes came, and are not the template's", k, s.Size)
		}
	}
	if template.Close == side {
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			return err
		}
	}
	if n, err := io.Copy(io.Discard, c); n != 0 || err != nil {
		return fmt.Errorf("at the end %d bytes more, %w", n, err)
	}
	return nil
}

// TestAgainstLinuxClient: Linux clients send requests to the engine, and get every byte.
func TestAgainstLinuxClient(t *testing.T) {
	families(t, func(t *testing.T, six bool) {
		n := wired(t)
		p := againstLinux(t, six, "20-23", "50")
		gateway := n.Clients[0].Addr4()
		if six {
			gateway = n.Clients[0].Addr6()
		}
		d := start(t, Port{Interface: n.Gateway.Interfaces[0].Name, Namespace: n.Gateway},
			Config{Role: Server, Profile: p, Gateway: gateway})
		group, ctx := errgroup.WithContext(t.Context())
		const clients, each = 8, 6
		for k := range clients {
			group.Go(func() error {
				for j := range each {
					template := &p.Templates[(k+j)%2]
					c, err := n.Clients[0].Dial(ctx, "tcp", netip.AddrPortFrom(p.Servers.First, template.Port).String())
					if err != nil {
						return err
					}
					_ = c.SetDeadline(time.Now().Add(20 * time.Second)) // cannot fail on an open connection
					err = converse(c, template, Client, 1, c.LocalAddr().(*net.TCPAddr).AddrPort())
					c.Close()
					if err != nil {
						return fmt.Errorf("client of %s: %w", template.Name, err)
					}
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
		wait(t, d, func(c Counts) bool { return c.Completed == clients*each })
		if c := d.total(); c.Opened != clients*each || c.Failures() != 0 || c.Active != 0 {
			t.Errorf("%+v", c)
		}
		refused(t, n, p)
	})
}

// refused: the engine answers a port without a template with RST.
func refused(t *testing.T, n *topo.Net, p *Profile) {
	t.Helper()
	began := time.Now()
	c, err := n.Clients[0].Dial(t.Context(), "tcp", netip.AddrPortFrom(p.Servers.First, 9).String())
	if err == nil {
		c.Close()
		t.Fatal("a port of no template was opened")
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) && time.Since(began) > 5*time.Second {
		t.Errorf("refused after %s: %v", time.Since(began), err)
	}
}
