package fastpath_test

import (
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// TestTimes: two workers count the times of a connection and of a question for its backend.
func TestTimes(t *testing.T) {
	const syn, ack, rst = headertest.SYN, headertest.ACK, headertest.RST
	l := newLab(t, labConfig{workers: 2})
	// pass sends a packet after d at a worker, which forwards it.
	pass := func(d time.Duration, worker int, p *headertest.Packet) header.Packet {
		t.Helper()
		l.now += uint64(d)
		l.send(worker, p)
		_, out := l.out(l.workers[worker].nic)
		return out
	}
	client, vip, end := join(client4, 40000), join(vip4, 80), join(backend4, 8080)
	segment := func(from, to string, flags uint8, seq, acked uint32, payload string) *headertest.Packet {
		p := headertest.TCP(from, to, flags)
		p.Seq, p.Ack, p.Payload = seq, acked, []byte(payload)
		return p
	}
	// Each send takes another microsecond of the clock.
	const isn, ms = 1000, time.Millisecond
	out := pass(0, 0, segment(client, vip, syn, 7, 0, ""))
	from, _ := ends(&out.Tuple)
	snat := from.String()
	pass(time.Second, 1, segment(client, vip, syn, 7, 0, "")) // the first is lost
	pass(3*ms, 1, segment(end, snat, syn|ack, isn, 8, ""))
	pass(2*ms, 0, segment(client, vip, syn, 7, 0, "")) // the answer is lost
	pass(ms, 1, segment(end, snat, syn|ack, isn, 8, ""))
	pass(ms, 0, segment(client, vip, ack, 8, isn+1, ""))
	pass(5*ms, 0, segment(client, vip, ack, 8, isn+1, "question"))
	pass(ms, 1, segment(end, snat, ack, isn+1, 16, ""))
	pass(149*ms, 1, segment(end, snat, ack, isn+1, 16, "answer"))
	pass(ms, 0, segment(client, vip, ack, 16, isn+7, "another question"))
	pass(200*ms, 1, segment(end, snat, ack, isn+7, 32, "another answer"))
	pass(ms, 1, segment(end, snat, rst|ack, isn+21, 32, ""))
	pass(ms, 1, segment(end, snat, rst|ack, isn+21, 32, ""))

	out = pass(0, 0, headertest.UDP(client, join(vip4, 53), "question"))
	from, _ = ends(&out.Tuple)
	pass(40*ms, 1, headertest.UDP(join(backend4, 5353), from.String(), "answer"))
	pass(ms, 0, headertest.UDP(client, join(vip4, 53), "question"))
	pass(ms, 1, headertest.UDP(join(backend4, 5353), from.String(), "answer"))

	out = pass(0, 0, segment(join(client4, 40001), vip, syn, 7, 0, ""))
	from, _ = ends(&out.Tuple)
	pass(ms, 1, segment(end, from.String(), rst|ack, 0, 8, ""))

	tcp, udp := l.times.At(1), l.times.At(2)
	for _, c := range []struct {
		name      string
		h         *stats.Histogram
		n         uint64
		want, off time.Duration
	}{
		{"handshake", &tcp.Handshake, 1, time.Second + 3*ms, 2 * time.Microsecond},
		{"answer", &tcp.Answer, 1, 150 * ms, 2 * time.Microsecond},
		{"answer of UDP", &udp.Answer, 1, 40 * ms, time.Microsecond},
		{"handshake of UDP", &udp.Handshake, 0, 0, 0},
	} {
		var n uint64
		for i := range c.h.Buckets {
			n += c.h.Buckets[i].Load()
		}
		sum := time.Duration(c.h.Micros.Load()) * time.Microsecond
		if n != c.n || sum < c.want || sum > c.want+c.off {
			t.Errorf("%s: %d times, %v, want %d, %v", c.name, n, sum, c.n, c.want)
		}
	}
	got := [5]uint64{tcp.RepeatedSYNs.Load(), tcp.RepeatedAfter.Load(), tcp.Refused.Load(), tcp.ResetByBackend.Load(),
		tcp.ResetByClient.Load()}
	if want := [5]uint64{1, 1, 1, 1, 0}; got != want {
		t.Errorf("SYNs repeated before and after the answer, refused, reset by backend and client: %d, want %d", got,
			want)
	}
}
