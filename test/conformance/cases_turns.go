package conformance

import "time"

// affinityTime is affinity as time passes.
func (b *cases) affinityTime() {
	three := []string{"b0", "b1", "b2"}
	// Without a pin each new flow goes anywhere, so a pin that ends after its first flow shows.
	c := b.add("Affinity/each new flow starts the time anew", "slides")
	f := c.service(affinity(3), annotation("sluice.dev/scheduler", "random")).slice("", three...)
	for _, d := range [...]dest{f.vip4(), f.vip6()} {
		c.probe(&probe{how: "tcp", from: crowd, to: []dest{d}, want: "one for each client from gateway", as: oneForEach,
			n: 10, every: time.Second})
	}
	g := c.service(affinity(1), annotation("sluice.dev/scheduler", "random")).slice("", three...)
	c.probe(&probe{how: "tcp", from: crowd, to: []dest{g.vip4()}, want: "several for one client from gateway",
		as: oneForEach, n: 4, every: 2 * time.Second})

	c = b.add("Affinity/a backend that comes back", "without-its-clients")
	f = c.service(affinity(10800)).slice("", "b0")
	c.tcp(crowd, viaB0, f.vip4()).udp(crowd, viaB0, f.vip4()).then("b1 instead")
	f.slice("", "b1")
	c.tcp(other, viaB1, f.vip4()).udp(other, viaB1, f.vip4()).then("b0 comes back")
	f.slice("", "b0", "b1")
	c.tcp(crowd, "b0 b1 from gateway", f.vip4()).udp(crowd, "b0 b1 from gateway", f.vip4())
}

// turns is what schedulers promise exactly.
func (b *cases) turns() {
	three := []string{"b0", "b1", "b2"}
	exactly := func(c *Case, as manner, want string, d dest) {
		c.probe(&probe{how: "tcp", from: outside, to: []dest{d}, want: want, as: as, n: 30, unasked: whyNoTurns})
	}
	c := b.add("Choosing a backend/rr, wrr", "turns")
	f := c.service(annotation("sluice.dev/scheduler", "rr")).slice("", three...)
	exactly(c, inTurn, "b0 b1 b2 in turn from gateway", f.vip4())
	exactly(c, inTurn, "b0 b1 b2 in turn from gateway", f.vip6())

	c = b.add("Choosing a backend/rr, wrr + Service/annotation sluice.dev/weights", "turns-by-weight")
	f = c.service(annotation("sluice.dev/scheduler", "wrr"), annotation("sluice.dev/weights",
		"10.72.0.100=3, fd72::64=3, node:n2=2")).slice("", three...)
	exactly(c, howOften, "b0 15×, b1 5×, b2 10× from gateway", f.vip4())
	exactly(c, howOften, "b0 15×, b1 5×, b2 10× from gateway", f.vip6())

	c = b.add("Choosing a backend/lc, wlc", "the-idle-one")
	f = c.service(annotation("sluice.dev/scheduler", "wlc")).slice("", "b0")
	c.keeps("t", "tcp", outside, viaB0, f.vip4()).then("b1 is new and idle")
	f.slice("", "b0", "b1")
	c.probe(&probe{how: "tcp", from: outside, to: []dest{f.vip4()}, want: viaB1, n: keptFlows / 2, hold: true,
		unasked: whyNoTurns})

	c = b.add("Different on purpose/An unanswered SYN", "late-answers")
	f = c.service().slice("", "b0", late4)
	c.last().put = c.last().put[:1]
	c.put(f.sliceOf("", "IPv4", "b0", late4))
	c.probe(&probe{how: late, from: outside, to: []dest{f.vip4()}, want: viaB0 + "; late answers counted", n: 24,
		slow: 3500 * time.Millisecond, unasked: whyNoRetry})

	// A client that has been given another endpoint is asked to wait no second time.
	c = b.add("Different on purpose/An unanswered SYN + Affinity/the client's address and the service port",
		"its-client-moves")
	f = c.service(affinity(10800)).slice("", "b0", silent4)
	c.last().put = c.last().put[:1]
	c.put(f.sliceOf("", "IPv4", "b0", silent4))
	opens := func(limit time.Duration) {
		c.probe(&probe{how: "tcp", from: crowd, to: []dest{f.vip4()}, want: viaB0, slow: limit, unasked: whyNoRetry})
	}
	opens(10 * time.Second)
	c.then("once more, and at once")
	opens(900 * time.Millisecond)
}
