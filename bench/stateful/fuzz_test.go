package stateful

import (
	"bytes"
	"testing"

	"encoding/binary"
	"sluice.dev/sluice/bench/framing"
	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/memlink"
)

// FuzzReceive: with arbitrary packets in the middle of exchanges, no frame is lost, every
// connection is either in the table or free, and both engines continue.
func FuzzReceive(f *testing.F) {
	r, err := newPair(smallProfile(f, page(), burst(), query()))
	if err != nil {
		f.Fatal(err)
	}
	n := 0
	r.fault = func(to *memlink.Link, frame []byte) {
		if n++; n%7 == 0 && n < 700 {
			f.Add(to == r.clientLink, bytes.Clone(frame))
		}
		to.Inject(frame)
	}
	play(f, r, 100, 1<<40)
	f.Fuzz(func(t *testing.T, toClient bool, frame []byte) {
		r, err := newPair(smallProfile(t, page(), burst(), query()))
		if err != nil {
			t.Fatal(err)
		}
		now := uint64(1_000_000_000)
		for k := range 60 {
			now += 300_000
			r.step(now)
			if k%20 == 10 {
				fill(r, frame, toClient)
			}
		}
		for _, e := range []*Engine{r.client, r.server} {
			if e.Frames() != pairFrames {
				t.Fatalf("%s: %d frames of %d", e.role, e.Frames(), pairFrames)
			}
			e.checkTable(t)
		}
		if r.client.stats.Total().Opened == 0 {
			t.Fatal("no connection was opened")
		}
	})
}

// fill injects a frame into an engine, with valid checksums if it has a transport header: otherwise
// nearly all would be dropped by the checksum.
func fill(r *pair, frame []byte, toClient bool) {
	e, link := r.server, r.serverLink
	if toClient {
		e, link = r.client, r.clientLink
	}
	const at = header.EthernetBytes + header.IPv4Bytes
	if len(frame) >= at+header.TCPBytes && len(frame) < 1600 {
		frame = bytes.Clone(frame)
		length := len(frame) - header.EthernetBytes
		frame[header.EthernetBytes+2], frame[header.EthernetBytes+3] = byte(length>>8), byte(length)
		frame[header.EthernetBytes+10], frame[header.EthernetBytes+11] = 0, 0
		binary.BigEndian.PutUint16(frame[header.EthernetBytes+10:], ^checksum.Sum(frame[header.EthernetBytes:at]))
		protocol := frame[header.EthernetBytes+9]
		if protocol == header.ProtoUDP {
			frame[at+4], frame[at+5] = byte((len(frame)-at)>>8), byte(len(frame)-at)
		}
		framing.Seal(frame[at:], e.addressesOf(frame), protocol)
	}
	link.Inject(frame)
}

// checkTable verifies the whole structure.
func (e *Engine) checkTable(t *testing.T) {
	t.Helper()
	present, free := 0, 0
	for i := range e.conns[1:] {
		c := &e.conns[i+1]
		if c.state == closed {
			continue
		}
		present++
		k := key{peer: c.peer, local: c.local, localPort: c.localPort, peerPort: c.peerPort, protocol: c.protocol}
		if got := e.table.find(e.conns, &k, c.hash); got != uint32(i+1) {
			t.Fatalf("%s: connection %d is found as %d", e.role, i+1, got)
		}
	}
	for i := e.free; i != 0; i = e.conns[i].next {
		free++
	}
	slots := 0
	for _, s := range e.table.slots {
		if s != 0 {
			slots++
		}
	}
	if slots != present || present+free != len(e.conns)-1 {
		t.Fatalf("%s: %d in use, %d in the table, %d free of %d", e.role, present, slots, free, len(e.conns)-1)
	}
}
