package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/test/bed/topo"
)

// takeOvers starts the next daemon again and again under held connections and numbered datagrams
// of both families. Each takes over from the one before: NICs stay in their modes, and no datagram
// is lost or comes twice.
func (l *lab) takeOvers() (string, error) {
	flows, err := l.hold()
	if err != nil {
		return "", err
	}
	defer flows.Stop()
	var loads []*numbered
	for _, vip := range []string{vip4, vip6} {
		n, err := l.number(vip)
		if err != nil {
			return "", err
		}
		defer n.conn.Close()
		loads = append(loads, n)
	}
	var gaps []time.Duration
	for n := range l.TakeOvers {
		gap, err := l.takeOver(loads)
		if err == nil {
			err = l.allAnswered(flows)
		}
		if err != nil {
			return "", fmt.Errorf("hand-over %d: %w", n+1, err)
		}
		gaps = append(gaps, gap)
		fmt.Fprintf(l.Log, "hand-over %d: packets waited %v\n", n+1, gap)
	}
	slices.Sort(gaps)
	sent, lost, repeated := uint64(0), uint64(0), uint64(0)
	for _, n := range loads {
		n.end(l.patience(5 * time.Second))
		sent, lost, repeated = sent+n.sent.Load(), lost+n.sent.Load()-n.answered.Load(), repeated+n.repeated
	}
	detail := fmt.Sprintf("%d hand-overs under %d connections: %d datagrams each way, %d lost, %d repeated, packets "+
		"waited %v (median), %v (most)", l.TakeOvers, heldFlows, sent, lost, repeated, gaps[len(gaps)/2],
		gaps[len(gaps)-1])
	if lost+repeated > 0 {
		return "", errors.New(detail)
	}
	return detail, nil
}

// takeOver starts the next daemon, and returns how long packets waited.
func (l *lab) takeOver(loads []*numbered) (time.Duration, error) {
	if err := l.gate.LaunchNext(); err != nil {
		return 0, err
	}
	if err := l.gate.TakenOver(l.ctx); err != nil {
		return 0, err
	}
	v, err := l.gate.Applied(l.ctx)
	if err != nil {
		return 0, err
	}
	if v.TakeOver == nil || v.TakeOver.At.IsZero() {
		return 0, fmt.Errorf("it did not take over: %+v", v.TakeOver)
	}
	for i := range v.Interfaces {
		nic := &v.Interfaces[i]
		mode, why, err := modeOf(nic)
		if err != nil {
			return 0, err
		}
		want, ours := map[string]Mode{l.interfaces()[0]: l.Left, l.interfaces()[1]: l.Right}[nic.Name]
		if ours && mode != want {
			return 0, fmt.Errorf("%s is in %s mode, was in %s: %s", nic.Name, mode, want, why)
		}
	}
	for _, n := range loads {
		if err := n.goesOn(l); err != nil {
			return 0, err
		}
	}
	return time.Duration(v.TakeOver.GapMicros) * time.Microsecond, nil
}

// numbered sends numbered datagrams to a VIP, as many at a time as fit any ring, and counts the
// answers.
type numbered struct {
	conn           net.Conn
	sent, answered atomic.Uint64
	repeated       uint64
	stop           atomic.Bool
	sender, reader chan struct{}
}

const numberBytes = 64 // of a datagram

func (l *lab) number(vip string) (*numbered, error) {
	conn, err := l.Clients[0].Dial(l.ctx, "udp", at(vip, echoPort).String())
	if err != nil {
		return nil, err
	}
	n := &numbered{conn: conn, sender: make(chan struct{}), reader: make(chan struct{})}
	go n.read()
	go n.send()
	return n, nil
}

func (n *numbered) send() {
	defer close(n.sender)
	var b [numberBytes]byte
	for !n.stop.Load() {
		if n.sent.Load() >= n.answered.Load()+window {
			time.Sleep(time.Millisecond)
			continue
		}
		binary.BigEndian.PutUint64(b[:], n.sent.Load())
		if _, err := n.conn.Write(b[:]); err == nil {
			n.sent.Add(1)
		}
	}
}

func (n *numbered) read() {
	defer close(n.reader)
	var b [maxDatagram]byte
	seen := map[uint64]bool{}
	for {
		got, err := n.conn.Read(b[:])
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil || got != numberBytes: // an ICMP error
			continue
		}
		number := binary.BigEndian.Uint64(complement(b[:8]))
		if seen[number] {
			n.repeated++
			continue
		}
		seen[number] = true
		n.answered.Add(1)
	}
}

// goesOn waits until some more datagrams were answered.
func (n *numbered) goesOn(l *lab) error {
	const more = 4 * window
	want := n.answered.Load() + more
	end := time.Now().Add(l.patience(10 * time.Second))
	for n.answered.Load() < want {
		if time.Now().After(end) {
			return fmt.Errorf("%s: %d of %d datagrams were answered, and no more come", n.conn.RemoteAddr(),
				n.answered.Load(), n.sent.Load())
		}
		if err := topo.Pause(l.ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// end waits for the answers that are under way.
func (n *numbered) end(within time.Duration) {
	n.stop.Store(true)
	<-n.sender
	for deadline := time.Now().Add(within); n.answered.Load() < n.sent.Load() && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	_ = n.conn.Close() // which ends the reader
	<-n.reader
}
