package fastpath_test

import (
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// retryLab has the given backends behind ruleVIP. on is RetryOther, keep is KeepClient.
func retryLab(t *testing.T, on, keep bool, ips ...string) *lab {
	return newLab(t, labConfig{workers: 2, edit: func(b *services.Builder) {
		b.Settings().RetryOther = on
		r := services.Rule{Set: set(b, 30, 30, header.ProtoTCP, ips...), KeepClient: keep}
		rules(b, 30, services.LoadBalancer, ruleVIP, 80, header.ProtoTCP, r, r)
	}})
}

// syn sends a client's SYN and returns where it went and from where.
func (l *lab) syn(worker int) (src, dst string) {
	l.t.Helper()
	l.send(worker, headertest.TCP(join(client4, 40000), join(ruleVIP, 80), headertest.SYN))
	_, p := l.out(l.workers[worker].nic)
	s, d := ends(&p.Tuple)
	return s.String(), d.String()
}

func (l *lab) retried() (n uint64) {
	for _, g := range l.workers {
		n += g.stats.FlowsRetried.Load()
	}
	return n
}

// TestRetryOther: a client sends a SYN, and repeats it after 1 s and 3 s. The second repetition
// goes to the other backend, with a new source port. Late answers of the first backend are dropped
// with a named reason, or go to the kernel if they are for the client's own address. Answers of the
// second reach the client.
func TestRetryOther(t *testing.T) {
	for name, keep := range map[string]bool{"translated": false, "client kept": true} {
		t.Run(name, func(t *testing.T) {
			l := retryLab(t, true, keep, backend4, second4)
			src1, dst1 := l.syn(0)
			l.step(time.Second)
			if src, dst := l.syn(0); src != src1 || dst != dst1 {
				t.Fatalf("the first repetition moved from %s, %s to %s, %s", src1, dst1, src, dst)
			}
			l.step(2 * time.Second)
			src2, dst2 := l.syn(1)
			if dst2 == dst1 || l.retried() != 1 {
				t.Fatalf("the second repetition went to %s as before; %d flows retried", dst2, l.retried())
			}
			if live := l.table.Counts().Live[0]; live != 1 {
				t.Errorf("%d flows, want 1", live)
			}
			for _, late := range []uint8{headertest.SYN | headertest.ACK, headertest.RST | headertest.ACK} {
				l.send(0, headertest.TCP(dst1, src1, late))
			}
			if l.nothing(l.workers[0].nic); keep {
				for range 2 {
					_, p := l.out(l.workers[0].host)
					l.wantTuple(&p, dst1, src1)
				}
			} else {
				l.nothing(l.workers[0].host)
				l.wantDrop(reason.LateAnswer, 2)
			}
			l.send(0, headertest.TCP(dst2, src2, headertest.SYN|headertest.ACK))
			_, p := l.out(l.workers[0].nic)
			l.wantTuple(&p, join(ruleVIP, 80), join(client4, 40000))
			if _, dst := l.syn(0); dst != dst2 {
				t.Errorf("after the answer the SYN goes to %s", dst)
			}
		})
	}
}

// TestNoRetry: the cases in which the connection keeps its backend.
func TestNoRetry(t *testing.T) {
	for _, tt := range []struct {
		name   string
		on     bool
		ips    []string
		during func(l *lab, src, dst string) // before the second repetition
	}{
		{"switched off", false, []string{backend4, second4}, nil},
		{"no other backend", true, []string{backend4}, nil},
		{"answered meanwhile", true, []string{backend4, second4}, func(l *lab, src, dst string) {
			l.send(0, headertest.TCP(dst, src, headertest.SYN|headertest.ACK))
			l.out(l.workers[0].nic)
		}},
		{"no backend takes new flows", true, []string{backend4, second4}, func(l *lab, _, _ string) {
			l.publish(func(b *services.Builder) {
				empty := services.Rule{Set: &services.EndpointSet{}}
				rules(b, 30, services.LoadBalancer, ruleVIP, 80, header.ProtoTCP, empty, empty)
			})
		}},
		{"the client is no longer in the ranges", true, []string{backend4, second4}, func(l *lab, _, _ string) {
			l.publish(func(b *services.Builder) {
				f, _ := b.Settings().FrontendByKey(services.FrontendKey{Addr: addr(ruleVIP), Port: 80,
					Proto: header.ProtoTCP})
				next := *f
				next.Allowed = ranges("192.0.2.0/24")
				b.SetFrontend(&next)
			})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := retryLab(t, tt.on, false, tt.ips...)
			src, dst := l.syn(0)
			for i := range 6 {
				if i == 1 && tt.during != nil {
					tt.during(l, src, dst)
				}
				l.step(time.Second)
				if s, d := l.syn(0); s != src || d != dst {
					t.Fatalf("repetition %d moved from %s, %s to %s, %s", i+1, src, dst, s, d)
				}
			}
			l.send(0, headertest.TCP(dst, src, headertest.SYN|headertest.ACK))
			_, p := l.out(l.workers[0].nic)
			l.wantTuple(&p, join(ruleVIP, 80), join(client4, 40000))
			if l.retried() != 0 || len(l.drops()) != 0 {
				t.Errorf("%d flows retried, drops %v", l.retried(), l.drops())
			}
		})
	}
}

// TestRetryWhenThereIsAnother: at the second repetition there is no other backend yet; a later
// repetition moves to it.
func TestRetryWhenThereIsAnother(t *testing.T) {
	for name, hinder := range map[string]func(b *services.Builder){
		"no other backend": func(b *services.Builder) {
			both(b, 30, ruleVIP, header.ProtoTCP, set(b, 30, 30, header.ProtoTCP, backend4))
		},
		"none at all": func(b *services.Builder) { both(b, 30, ruleVIP, header.ProtoTCP, &services.EndpointSet{}) },
	} {
		t.Run(name, func(t *testing.T) {
			l := retryLab(t, true, false, backend4)
			_, dst := l.syn(0)
			l.publish(hinder)
			for range 3 {
				l.step(time.Second)
				if _, d := l.syn(0); d != dst {
					t.Fatalf("from %s to %s", dst, d)
				}
			}
			l.publish(func(b *services.Builder) {
				both(b, 30, ruleVIP, header.ProtoTCP, set(b, 30, 30, header.ProtoTCP, backend4, second4))
			})
			l.step(time.Second)
			if _, d := l.syn(0); d != join(second4, 8080) || l.retried() != 1 {
				t.Errorf("the fourth repetition went to %s", d)
			}
		})
	}
}

// TestRetryByTheCurrentRules: the first backend was removed from the service and its index has
// another owner; the retry is scheduled like a new flow.
func TestRetryByTheCurrentRules(t *testing.T) {
	l := retryLab(t, true, false, backend4)
	_, dst := l.syn(0)
	l.step(time.Second)
	l.syn(0)
	l.publish(func(b *services.Builder) {
		b.DeleteBackend(services.MakeBackendRef(30, 1))
		both(b, 30, ruleVIP, header.ProtoTCP, set(b, 30, 31, header.ProtoTCP, second4))
	})
	l.step(time.Second)
	if _, next := l.syn(0); next == dst || next != join(second4, 8080) || l.retried() != 1 {
		t.Errorf("the second repetition went to %s", next)
	}
}

// TestRetryBothWorkersAtOnce: copies of the second repetition on two queues make one flow.
func TestRetryBothWorkersAtOnce(t *testing.T) {
	l := retryLab(t, true, false, "10.0.1.21", "10.0.1.22", "10.0.1.23", "10.0.1.24")
	l.syn(0)
	l.step(time.Second)
	l.syn(0)
	l.step(2 * time.Second)
	syn := headertest.TCP(join(client4, 40000), join(ruleVIP, 80), headertest.SYN).Bytes()
	var went []string
	for _, g := range l.workers {
		g.nic.Inject(slices.Clone(syn))
	}
	l.step(time.Microsecond)
	for _, g := range l.workers {
		_, p := l.out(g.nic)
		s, d := ends(&p.Tuple)
		went = append(went, s.String()+" "+d.String())
	}
	if went[0] != went[1] || l.retried() != 1 || l.table.Counts().Live[0] != 1 {
		t.Errorf("went %v, %d retried, %d flows", went, l.retried(), l.table.Counts().Live[0])
	}
}

// TestRetryOverHostLink: the late answer of an endpoint on the node arrives by the host link, and
// is not forwarded like the node's own packets.
func TestRetryOverHostLink(t *testing.T) {
	l := retryLab(t, true, false, local4, "10.244.0.6")
	g := l.workers[0]
	var first, last header.Tuple
	for i := range 3 {
		l.send(0, headertest.TCP(join(client4, 40000), join(ruleVIP, 80), headertest.SYN))
		_, p := l.out(g.host)
		if last = p.Tuple; i == 0 {
			first = p.Tuple
		}
		l.step(2 * time.Second)
	}
	if first.Dst == last.Dst {
		t.Fatalf("it stayed with %v", first.Dst)
	}
	src, dst := ends(&first)
	g.host.Inject(headertest.TCP(dst.String(), src.String(), headertest.SYN|headertest.ACK).Bytes())
	l.step(time.Microsecond)
	l.nothing(g.nic, g.host)
	l.wantDrop(reason.LateAnswer, 1)
}

// TestRetryWithoutRoom: there is another backend, but no source port towards it. The client keeps
// its flow, and gets its slow backend's answer. When a port is free, it is used.
func TestRetryWithoutRoom(t *testing.T) {
	l := newLab(t, labConfig{workers: 1, snat: services.PortRange{First: 20000, Count: 1},
		edit: func(b *services.Builder) {
			b.Settings().RetryOther = true
			both(b, 30, ruleVIP, header.ProtoTCP, set(b, 30, 30, header.ProtoTCP, backend4, second4))
		}})
	src, dst := l.syn(0)
	taken := "" // the client of the connection that has the other backend's port
	for port := uint16(1); taken == ""; port++ {
		c := join("198.51.100.9", port)
		l.send(0, headertest.TCP(c, join(ruleVIP, 80), headertest.SYN))
		frame, ok := l.workers[0].nic.Take(nil)
		if !ok {
			continue // it hashed to the first backend, whose port is in use
		}
		var p header.Packet
		header.Parse(frame, &p)
		if s, d := ends(&p.Tuple); d.String() != dst {
			taken = c
			l.send(0, headertest.TCP(d.String(), s.String(), headertest.SYN|headertest.ACK),
				headertest.TCP(c, join(ruleVIP, 80), headertest.ACK))
			l.send(0, headertest.TCP(d.String(), s.String(), headertest.ACK))
			for range 3 {
				l.out(l.workers[0].nic)
			}
		}
	}
	flows := l.table.Counts().Live[0]
	for range 3 {
		l.step(time.Second)
		if s, d := l.syn(0); s != src || d != dst {
			t.Fatalf("without a port it went from %s, %s to %s, %s", src, dst, s, d)
		}
	}
	if n := l.table.Counts().Live[0]; n != flows || l.retried() != 0 {
		t.Errorf("%d flows, were %d; %d retried", n, flows, l.retried())
	}
	if load := l.table.Loads(); load[30].Load() != 1 || load[31].Load() != 1 {
		t.Errorf("loads %d, %d, want 1, 1", load[30].Load(), load[31].Load())
	}
	l.send(0, headertest.TCP(dst, src, headertest.SYN|headertest.ACK))
	_, p := l.out(l.workers[0].nic)
	l.wantTuple(&p, join(ruleVIP, 80), join(client4, 40000))
}

// TestRetryTriesAllBackends: one of five backends answers. With any scheduler, a client that keeps
// repeating its SYN reaches it: retries do not alternate between two dead backends.
func TestRetryTriesAllBackends(t *testing.T) {
	for by := range services.NumSchedulers {
		l := newLab(t, labConfig{workers: 1, edit: func(b *services.Builder) {
			b.Settings().RetryOther = true
			both(b, 30, ruleVIP, header.ProtoTCP, set(b, 30, 30, header.ProtoTCP, backend4, second4, "10.0.1.13",
				"10.0.1.14", "10.0.1.15")).Service.Scheduler = by
		}})
		seen := map[string]bool{}
		for range 120 {
			_, dst := l.syn(0)
			seen[dst] = true
			l.step(time.Second)
		}
		if len(seen) != 5 {
			t.Errorf("%v: after %d retries only %v were tried", by, l.retried(), seen)
		}
	}
}

// TestRetryDoublingTimers: a client repeats its SYN after 1, 2, 4 and 8 s (RFC 6298 section 5.5),
// and its first backends are dead: each repetition from the second on goes to another backend.
func TestRetryDoublingTimers(t *testing.T) {
	l := retryLab(t, true, false, "10.0.1.21", "10.0.1.22", "10.0.1.23", "10.0.1.24")
	_, last := l.syn(0)
	for i, wait := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second} {
		l.step(wait)
		_, dst := l.syn(0)
		if moved := dst != last; moved != (i > 0) {
			t.Errorf("repetition %d went from %s to %s", i+1, last, dst)
		}
		last = dst
	}
}
