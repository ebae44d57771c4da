package topo

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/net/ipv4"
)

// NumberedLoad is datagrams from one socket to one address, each with a number of its own, of which
// a Server's echo is expected once.
type NumberedLoad struct {
	From netip.Addr
	To   netip.AddrPort
	// Rate is how many are sent a second by the clock, whether or not others are answered. Without
	// one so few are under way at once that no queue on the way overflows (a veth has room for 256,
	// a socket for 270): then the system in between lost every missing one.
	Rate int
	// UnderWay is how many may be under way without a Rate, 100.
	UnderWay uint64
	// Patience is how long Finish waits for answers that are under way, 5 s.
	Patience time.Duration
}

// Numbered is a load that runs.
type Numbered struct {
	load NumberedLoad
	conn net.PacketConn
	to   net.Addr
	// sent counts datagrams sent, answered datagrams that came back at least once.
	sent, answered atomic.Uint64
	repeated       uint64
	err            error
	stop           atomic.Bool
	sender, reader chan struct{} // closed when they have ended
}

const datagramBytes = 64

// Number starts the load. It ends with the network at the latest.
func (h *Host) Number(l NumberedLoad) (*Numbered, error) {
	conn, err := h.ListenPacket("udp", netip.AddrPortFrom(l.From, 0).String())
	if err != nil {
		return nil, fmt.Errorf("numbered datagrams: %w", err)
	}
	_ = conn.(*net.UDPConn).SetReadBuffer(8 << 20)
	l.UnderWay, l.Patience = cmp.Or(l.UnderWay, 100), cmp.Or(l.Patience, 5*time.Second)
	n := &Numbered{load: l, conn: conn, to: net.UDPAddrFromAddrPort(l.To), sender: make(chan struct{}),
		reader: make(chan struct{})}
	go n.receive()
	if l.Rate > 0 {
		go n.sendByClock()
	} else {
		go n.send()
	}
	h.net.onClose(func() error { n.close(); return nil })
	return n, nil
}

// sendByClock sends the datagrams due each 0.2 ms, in one system call.
func (n *Numbered) sendByClock() {
	defer close(n.sender)
	const most = 256
	messages := make([]ipv4.Message, most)
	for i := range messages {
		messages[i] = ipv4.Message{Buffers: [][]byte{make([]byte, datagramBytes)}, Addr: n.to}
	}
	batch := ipv4.NewPacketConn(n.conn) // sendmmsg(2) is the same for both families
	for began := time.Now(); !n.stop.Load(); time.Sleep(200 * time.Microsecond) {
		sent := n.sent.Load()
		due := min(uint64(time.Since(began).Seconds()*float64(n.load.Rate))-sent, most)
		for i := range due {
			binary.BigEndian.PutUint64(messages[i].Buffers[0], sent+i)
		}
		if due == 0 {
			continue
		}
		done, _ := batch.WriteBatch(messages[:due], 0)
		n.sent.Add(uint64(max(done, 0)))
	}
}

func (n *Numbered) send() {
	defer close(n.sender)
	var b [datagramBytes]byte
	for !n.stop.Load() {
		if n.sent.Load() >= n.answered.Load()+n.load.UnderWay {
			time.Sleep(50 * time.Microsecond)
			continue
		}
		binary.BigEndian.PutUint64(b[:], n.sent.Load())
		if _, err := n.conn.WriteTo(b[:], n.to); err == nil {
			n.sent.Add(1)
		}
	}
}

func (n *Numbered) receive() {
	defer close(n.reader)
	var b [2048]byte
	var seen []bool
	for {
		got, _, err := n.conn.ReadFrom(b[:])
		if err != nil {
			if !n.stop.Load() {
				n.err = err
			}
			return
		}
		if got < datagramBytes {
			continue
		}
		number := binary.BigEndian.Uint64(b[got-datagramBytes:]) // behind the name of the backend
		for uint64(len(seen)) <= number {
			seen = append(seen, make([]bool, 1<<16)...)
		}
		if seen[number] {
			n.repeated++
			continue
		}
		seen[number] = true
		n.answered.Add(1)
	}
}

// Answered is how many have come back so far.
func (n *Numbered) Answered() uint64 { return n.answered.Load() }

// Sent is how many were sent so far.
func (n *Numbered) Sent() uint64 { return n.sent.Load() }

// Finish sends no more, waits for the answers that are under way, and returns how many never came
// and how many came again. It may be called twice.
func (n *Numbered) Finish() (sent, lost, repeated uint64, err error) {
	n.stop.Store(true)
	<-n.sender
	for deadline := time.Now().Add(n.load.Patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if n.answered.Load() == n.sent.Load() {
			break
		}
	}
	n.close()
	return n.sent.Load(), n.sent.Load() - n.answered.Load(), n.repeated, n.err
}

func (n *Numbered) close() {
	n.stop.Store(true)
	<-n.sender
	_ = n.conn.SetReadDeadline(time.Now())
	<-n.reader
	_ = n.conn.Close()
}
