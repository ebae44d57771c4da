package topo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"sluice.dev/sluice/test/bed/machine"
)

// Server is a backend: an HTTP/1.1 server on TCP and an echo server on UDP, on one
// port of both addresses of a host. All answers name the server.
//
//	GET  /                     "NAME CLIENT-ADDRESS\n"
//	GET  /bytes?n=N&seed=S     N pseudo-random bytes; their SHA-256 in the trailer Sha256
//	POST /sum                  "SHA-256 LENGTH\n" of the body
//	GET  /stream?n=N&every=D   N lines "NAME NUMBER\n", one every D
//	UDP                        "NAME " and the datagram
//
// HTTP answers carry the name and the address the server saw in the headers
// Backend and Client.
type Server struct {
	Name string
	Port uint16

	http    *http.Server
	packets []net.PacketConn
	running sync.WaitGroup
	cancel  context.CancelFunc
}

// Header and trailer names of the servers' answers.
const (
	BackendHeader = "Backend"
	ClientHeader  = "Client"
	SumTrailer    = "Sha256"
)

// Bounds of one request.
const (
	maxBodyBytes   = 16 << 30
	maxStreamLines = 1_000_000
	maxDatagram    = 65_535
)

// Serve starts a server on the host, named after it, on one port of the first
// interface's addresses.
func (h *Host) Serve(port uint16) (*Server, error) {
	return h.ServeOn(h.Name, port, h.Addr4(), h.Addr6())
}

// ServeOn starts a server with a name on the given addresses of the host.
func (h *Host) ServeOn(name string, port uint16, addrs ...netip.Addr) (*Server, error) {
	return h.serve(name, port, listenOn(port, addrs))
}

// ServeHere starts a server in the caller's own namespace, which ends with Close alone: for a
// program that is nothing but a backend. The IPv6 wildcard is both families'.
func ServeHere(name string, port uint16, addrs ...netip.Addr) (*Server, error) {
	return serveIn(func(f func() error) error { return f() }, name, port, listenOn(port, addrs))
}

// listenFunc makes the sockets of a server: the listeners that it returns, and the server's own for
// datagrams.
type listenFunc func(*Server) ([]net.Listener, error)

// listenOn listens on TCP and UDP.
func listenOn(port uint16, addrs []netip.Addr) listenFunc {
	return func(s *Server) (listeners []net.Listener, err error) {
		for _, a := range addrs {
			at := netip.AddrPortFrom(a, port).String()
			l, err := net.Listen("tcp", at)
			if err != nil {
				return listeners, err
			}
			listeners = append(listeners, l)
			// One socket for each address: a reply must have the source that was asked.
			c, err := net.ListenPacket("udp", at)
			if err != nil {
				return listeners, err
			}
			_ = c.(*net.UDPConn).SetReadBuffer(4 << 20) // for datagrams that come after a pause, all at once
			s.packets = append(s.packets, c)
		}
		return listeners, nil
	}
}

// serve starts a server on the host, which ends with the network at the latest.
func (h *Host) serve(name string, port uint16, listen listenFunc) (*Server, error) {
	s, err := serveIn(h.Run, name, port, listen)
	if err != nil {
		return nil, err
	}
	h.net.onClose(s.Close)
	return s, nil
}

// serveIn starts a server on sockets made where run takes a function.
func serveIn(run func(func() error) error, name string, port uint16, listen listenFunc) (*Server, error) {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{Name: name, Port: port, cancel: cancel}
	s.http = &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: machine.Slower(30 * time.Second),
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	var listeners []net.Listener
	err := run(func() (err error) {
		listeners, err = listen(s)
		return err
	})
	for _, l := range listeners {
		if err != nil {
			l.Close()
			continue
		}
		s.running.Go(func() { _ = s.http.Serve(l) }) // ends with Close
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	for _, c := range s.packets {
		s.running.Go(func() { s.echo(c) })
	}
	return s, nil
}

// Close breaks all connections and waits until nothing runs any more.
func (s *Server) Close() error {
	s.cancel()
	err := s.http.Close()
	for _, c := range s.packets {
		c.Close() // a second time is no matter
	}
	s.running.Wait()
	return err
}

// echo answers datagrams until the socket is closed.
func (s *Server) echo(c net.PacketConn) {
	in := make([]byte, maxDatagram)
	tag := []byte(s.Name + " ")
	for {
		n, from, err := c.ReadFrom(in)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // ICMP errors about earlier answers
		}
		_, _ = c.WriteTo(append(tag[:len(tag):len(tag)], in[:n]...), from)
	}
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s\n", s.Name, r.RemoteAddr)
	})
	mux.HandleFunc("GET /bytes", s.bytes)
	mux.HandleFunc("POST /sum", func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		n, err := io.Copy(sum, http.MaxBytesReader(w, r.Body, maxBodyBytes))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, "%s %d\n", sumText(sum), n)
	})
	mux.HandleFunc("GET /stream", s.stream)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(BackendHeader, s.Name)
		w.Header().Set(ClientHeader, r.RemoteAddr)
		mux.ServeHTTP(w, r)
	})
}

func (s *Server) bytes(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.ParseInt(r.FormValue("n"), 10, 64)
	if err != nil || n < 0 || n > maxBodyBytes {
		http.Error(w, fmt.Sprintf("n must be 0 to %d", int64(maxBodyBytes)), http.StatusBadRequest)
		return
	}
	seed, _ := strconv.ParseUint(r.FormValue("seed"), 10, 64) // absent is zero
	w.Header().Set("Trailer", SumTrailer)
	w.Header().Set("Content-Type", "application/octet-stream")
	sum := sha256.New()
	if _, err := io.Copy(w, io.TeeReader(randomBytes(n, seed), sum)); err == nil {
		w.Header().Set(SumTrailer, sumText(sum))
	}
}

func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.FormValue("n"))
	every, errEvery := time.ParseDuration(r.FormValue("every"))
	if err != nil || errEvery != nil || n < 0 || n > maxStreamLines || every < time.Millisecond {
		http.Error(w, fmt.Sprintf("n must be 0 to %d, every at least 1ms", maxStreamLines), http.StatusBadRequest)
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	out := http.NewResponseController(w)
	for i := range n {
		if _, err := fmt.Fprintf(w, "%s %d\n", s.Name, i); err != nil || out.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}

// randomBytes is n bytes that no compressor, checksum or shifted copy could
// mistake for others, the same for the same seed.
func randomBytes(n int64, seed uint64) io.Reader {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	return io.LimitReader(rand.NewChaCha8(key), n)
}

func sumText(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }
