package fastpath_test

import (
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// TestNewConnectionToAGoneEndpoint: a client uses the port of a connection again whose endpoint is
// no longer an endpoint, in any state of the connection. Answers of a pod that has the address now
// do not reach the client; the second repetition is scheduled like a new connection, even without
// retryOther.
func TestNewConnectionToAGoneEndpoint(t *testing.T) {
	c, v := join(client4, 40000), join(ruleVIP, 80)
	for _, tt := range []struct {
		name   string
		before func(l *lab, src, dst string)
	}{
		{"nobody answered", func(*lab, string, string) {}},
		{"the backend answered", func(l *lab, src, dst string) {
			l.send(0, headertest.TCP(dst, src, headertest.SYN|headertest.ACK))
			l.out(l.workers[0].nic)
		}},
		{"open", (*lab).shake},
		{"half closed", func(l *lab, src, dst string) {
			l.shake(src, dst)
			l.send(0, headertest.TCP(c, v, headertest.FIN|headertest.ACK))
			l.out(l.workers[0].nic)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := retryLab(t, false, false, backend4, second4)
			src, dst := l.syn(0)
			tt.before(l, src, dst)
			live := l.leaves(dst)
			var went []string
			for _, pause := range []time.Duration{0, 1, 2} {
				l.step(pause * time.Second)
				_, d := l.syn(int(pause) % 2)
				if went = append(went, d); d != dst {
					break
				}
				if l.state() != flowtable.SynRecv { // in that state the SYN has its answer
					before := l.drops()[reason.BackendGone.String()]
					l.send(0, headertest.TCP(dst, src, headertest.SYN|headertest.ACK))
					l.nothing(l.workers[0].nic, l.workers[0].host)
					if n := l.drops()[reason.BackendGone.String()]; n != before+1 {
						t.Errorf("a stranger's SYN-ACK: drops %v", l.drops())
					}
				}
			}
			if last := went[len(went)-1]; last != live || l.table.Counts().Live[0] != 1 || l.retried() != 1 {
				t.Errorf("SYNs went to %v, want the last at %s; %d flows, %d retried", went, live,
					l.table.Counts().Live[0], l.retried())
			}
			l.send(0, headertest.TCP(dst, src, headertest.ACK)) // of the old connection
			l.nothing(l.workers[0].nic, l.workers[0].host)
			if l.drops()[reason.LateAnswer.String()] != 1 {
				t.Errorf("drops %v", l.drops())
			}
		})
	}
}

// TestForgedSYNsDoNotMoveDrainingConnection: the endpoint was removed but still serves the
// connection. Forged SYNs from the client's address do not end it while either end sends.
func TestForgedSYNsDoNotMoveDrainingConnection(t *testing.T) {
	l := retryLab(t, true, false, backend4, second4)
	src, dst := l.syn(0)
	l.shake(src, dst)
	l.leaves(dst)
	for range 8 {
		l.step(time.Second)
		if _, d := l.syn(0); d != dst { // forged
			t.Fatalf("the connection went from %s to %s", dst, d)
		}
		l.send(0, headertest.TCP(dst, src, headertest.ACK)) // RFC 5961 section 4
		_, p := l.out(l.workers[0].nic)
		l.wantTuple(&p, join(ruleVIP, 80), join(client4, 40000))
	}
}

// TestEndpointComesBack: an endpoint that returns with a new number gets its old connections,
// whether or not it takes new ones.
func TestEndpointComesBack(t *testing.T) {
	for name, takesNew := range map[string]bool{"takes new flows": true, "takes none": false} {
		t.Run(name, func(t *testing.T) {
			l := retryLab(t, false, false, backend4)
			src, dst := l.syn(0)
			l.shake(src, dst)
			l.publish(func(b *services.Builder) {
				b.DeleteBackend(services.MakeBackendRef(30, 1))
				f := both(b, 30, ruleVIP, header.ProtoTCP, set(b, 30, 50, header.ProtoTCP, backend4))
				if !takesNew {
					other := services.Rule{Set: set(b, 30, 51, header.ProtoTCP, second4)}
					f.Outside, f.Pod = other, other
				}
			})
			for range 4 {
				if s, d := l.syn(0); s != src || d != dst {
					t.Fatalf("from %s, %s to %s, %s", src, dst, s, d)
				}
				l.step(time.Second)
			}
			l.send(0, headertest.TCP(dst, src, headertest.SYN|headertest.ACK))
			_, p := l.out(l.workers[0].nic)
			l.wantTuple(&p, join(ruleVIP, 80), join(client4, 40000))
			if loads := l.table.Loads(); loads[30].Load() != 0 || loads[50].Load() != 1 {
				t.Errorf("loads: %d under the old number, %d under the new", loads[30].Load(), loads[50].Load())
			}
		})
	}
}

// shake completes the handshake of the client's connection that went from src to dst.
func (l *lab) shake(src, dst string) {
	l.t.Helper()
	l.send(0, headertest.TCP(dst, src, headertest.SYN|headertest.ACK),
		headertest.TCP(join(client4, 40000), join(ruleVIP, 80), headertest.ACK),
		headertest.TCP(dst, src, headertest.ACK))
	for range 3 {
		l.out(l.workers[0].nic)
	}
}

// leaves removes the endpoint dst from retryLab's two, and returns the other.
func (l *lab) leaves(dst string) (other string) {
	gone, live := uint32(30), second4
	if dst != join(backend4, 8080) {
		gone, live = 31, backend4
	}
	l.publish(func(b *services.Builder) {
		b.DeleteBackend(services.MakeBackendRef(gone, 1))
		r := services.Rule{Set: set(b, 30, 40, header.ProtoTCP, live)}
		rules(b, 30, services.LoadBalancer, ruleVIP, 80, header.ProtoTCP, r, r)
	})
	return join(live, 8080)
}

// state returns the state of the only flow.
func (l *lab) state() flowtable.State {
	for s, n := range l.table.Counts().States {
		if n == 1 {
			return flowtable.State(s)
		}
	}
	return flowtable.None
}

// TestUDPOfAGoneEndpointAfterARestart: a flow of an earlier process whose endpoint is gone has no
// backend: ref 0. Another backend has index 0 and serves, but must not keep the flow alive.
func TestUDPOfAGoneEndpointAfterARestart(t *testing.T) {
	l := newLab(t, labConfig{edit: func(b *services.Builder) {
		be := backend(0, 1, second4, 8080, header.ProtoUDP)
		b.SetBackend(be)
	}})
	g := l.workers[0]
	client, vip := join(client4, 40000), join(vip4, 53)
	l.send(0, headertest.UDP(client, vip, "question"))
	_, p := l.out(g.nic)
	src, dst := ends(&p.Tuple)
	l.send(0, headertest.UDP(dst.String(), src.String(), "answer"), headertest.UDP(client, vip, "question"))
	l.out(g.nic)
	l.out(g.nic)
	l.forgetOwners() // as Recover does
	l.publish(func(b *services.Builder) {
		b.DeleteBackend(services.MakeBackendRef(2, 1))
		f, _ := b.Settings().FrontendByKey(services.FrontendKey{Addr: addr(vip4), Port: 53, Proto: header.ProtoUDP})
		next := *f
		next.Service = &services.Service{ID: 2, Proto: header.ProtoUDP, Port: 53}
		next.Outside.Set = &services.EndpointSet{Empty: services.EmptyDrop}
		b.SetService(next.Service)
		b.SetFrontend(&next)
	})
	l.step(3 * time.Second)
	for n := range uint64(3) {
		l.send(0, headertest.UDP(dst.String(), src.String(), "answer"))
		l.nothing(g.nic, g.host)
		l.wantDrop(reason.BackendGone, n+1)
	}
	l.send(0, headertest.UDP(client, vip, "question"))
	l.nothing(g.nic, g.host)
	if n := l.table.Counts().Live[0]; n != 0 {
		t.Errorf("%d flows are left, want none", n)
	}
}

// forgetOwners leaves every flow without owner and unbound, as flowtable.Recover does.
func (l *lab) forgetOwners() {
	h, err := l.table.Register()
	if err != nil {
		l.t.Fatal(err)
	}
	defer h.Close()
	buf := make([]flowtable.Info, 4096)
	_, n := h.Dump(0, buf, flowtable.Time(l.now))
	for _, f := range buf[:n] {
		h.Bind(f.Ref, 0, 0, 0, 0, 0)
	}
}

// TestSYNsThatReachNobodyDoNotMoveDrainingConnection: the endpoint was removed but still serves the
// connection, which is idle. A SYN that does not reach the endpoint's kernel gets no challenge ACK,
// so it must not count as unanswered.
func TestSYNsThatReachNobodyDoNotMoveDrainingConnection(t *testing.T) {
	for name, forge := range map[string]func(syn *headertest.Packet) []byte{
		"bad checksum": func(syn *headertest.Packet) []byte { return damage(syn.Bytes()) },
		"TTL of one": func(syn *headertest.Packet) []byte {
			syn.TTL = 1
			return syn.Bytes()
		},
		"fragment": func(syn *headertest.Packet) []byte {
			syn.Payload = make([]byte, 64)
			return headertest.Split(syn.Bytes(), 32, 7)[0]
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := retryLab(t, true, false, backend4, second4)
			g := l.workers[0]
			src, dst := l.syn(0)
			l.shake(src, dst)
			l.leaves(dst)
			for range 4 {
				l.step(time.Second)
				g.nic.Inject(forge(headertest.TCP(join(client4, 40000), join(ruleVIP, 80), headertest.SYN)))
				l.step(time.Millisecond)
				for ok := true; ok; _, ok = g.nic.Take(nil) {
				}
			}
			l.step(time.Second)
			if _, d := l.syn(0); d != dst || l.retried() != 0 || l.state() != flowtable.Established {
				t.Errorf("the connection went from %s to %s, %v, %d retried", dst, d, l.state(), l.retried())
			}
		})
	}
}
