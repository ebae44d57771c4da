package explain

import (
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/xdpprog"
)

// TestMalformedAgreesWithTheParser: addresses and ports that no packet can have are refused with
// the parser's reason.
func TestMalformedAgreesWithTheParser(t *testing.T) {
	ends := [2][]string{
		{"198.51.100.7", "203.0.113.10", "127.0.0.1", "0.1.2.3", "224.0.0.1", "255.255.255.255", "169.254.1.1",
			"240.0.0.1"},
		{"2001:db8::7", "2001:db8:f::10", "::1", "::", "fe80::1", "ff02::1", "::192.0.2.1"},
	}
	refused := map[reason.Drop]int{}
	for _, list := range ends {
		for _, src := range list {
			for _, dst := range list {
				for _, ports := range [][2]uint16{{1, 2}, {0, 2}, {1, 0}} {
					s, d := netip.MustParseAddr(src), netip.MustParseAddr(dst)
					from, to := netip.AddrPortFrom(s, ports[0]), netip.AddrPortFrom(d, ports[1])
					var p header.Packet
					want := header.Parse(headertest.UDP(from.String(), to.String(), "x").Bytes(), &p)
					got, why := malformed(&header.Tuple{
						Src: header.AddrFrom(s), Dst: header.AddrFrom(d), SrcPort: ports[0], DstPort: ports[1],
						Proto: header.ProtoUDP, V6: s.Is6(),
					})
					if got != want || (got == reason.None) != (why == "") {
						t.Errorf("%v -> %v: %v (%q), the parser says %v", from, to, got, why, want)
					}
					refused[got]++
				}
			}
		}
	}
	for _, r := range []reason.Drop{
		reason.None, reason.MartianSource, reason.MartianDestination, reason.LandAttack, reason.PortZero,
	} {
		if refused[r] == 0 {
			t.Errorf("no packet is refused by %v", r)
		}
	}
}

// TestNames: a problem that names an address is found by it, and by no other.
func TestNames(t *testing.T) {
	for _, c := range []struct {
		message, addr string
		want          bool
	}{
		{"LoadBalancer 203.0.113.1:80/TCP belongs to Service a/b", "203.0.113.1", true},
		{"LoadBalancer 203.0.113.10:80/TCP belongs to Service a/b", "203.0.113.1", false},
		{`"10.203.0.113.1" is not an IP address`, "203.0.113.1", false},
		{`"203.0.113.1" is a loopback address.`, "203.0.113.1", true},
		{"it is 203.0.113.1.", "203.0.113.1", true},
		{"ExternalIP [2001:db8::1]:80/TCP belongs to Service a/b", "2001:db8::1", true},
		{"ExternalIP [2001:db8::12]:80/TCP belongs to Service a/b", "2001:db8::1", false},
		{"", "203.0.113.1", false},
	} {
		if got := names(c.message, netip.MustParseAddr(c.addr)); got != c.want {
			t.Errorf("%q names %s: %v", c.message, c.addr, got)
		}
	}
}

// TestSilentNeighbour: a packet to a neighbour that does not answer is not said to go there.
func TestSilentNeighbour(t *testing.T) {
	a := answer{unanswered: netip.MustParseAddr("192.0.2.1")}
	a.x.Verdict.Action = decide.Queued
	hop, verdict := a.step(decide.Step{Name: "next hop", Text: "x"}),
		a.step(decide.Step{Name: stepVerdict, Text: "forward"})
	advice := a.advice(&status.ExplainView{Verdict: status.VerdictForward}, reason.None)
	for got, want := range map[string]string{
		hop.Text:     "192.0.2.1, which does not answer",
		verdict.Text: "forward if 192.0.2.1 answers, else drop (neighbour_pending)", advice: "ip neigh show 192.0.2.1",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q, want %q in it", got, want)
		}
	}
}

// TestNoFlowAdvice: only a client's packet is of a connection that this gateway does not know.
func TestNoFlowAdvice(t *testing.T) {
	v := status.ExplainView{From: netip.MustParseAddrPort("10.0.1.12:53")}
	for want, f := range map[string]*services.Frontend{
		"an answer later than the flow's timeout, or a scan; `sluice flows --backend 10.0.1.12`": nil,
		"a connection that this gateway does not know: `sluice flows --client 10.0.1.12`":        {},
	} {
		var a answer
		a.x.Verdict.Reason, a.x.Frontend = reason.NoFlow, f
		if got := a.advice(&v, reason.None); !strings.Contains(got, want) {
			t.Errorf("%q, want %q in it", got, want)
		}
	}
}

// TestUnfinishedChecksums: a connection that is forwarded and not completed is explained by them.
func TestUnfinishedChecksums(t *testing.T) {
	forwarded := status.ExplainView{Verdict: status.VerdictForward}
	for _, c := range []struct {
		proto uint8
		n     uint64
		want  bool
	}{
		{header.ProtoTCP, 3, true}, {header.ProtoSCTP, 3, true}, {header.ProtoUDP, 3, false},
		{header.ProtoTCP, 0, false},
	} {
		a := answer{tuple: header.Tuple{Proto: c.proto}, unfinished: c.n}
		if got := a.advice(&forwarded, reason.None); strings.Contains(got, "3 segments") != c.want {
			t.Errorf("protocol %d, %d unfinished: %q", c.proto, c.n, got)
		}
	}
}

// TestSocketsFirst: the step of the kernel program says where a socket of the node comes before the
// frontend, and only there.
func TestSocketsFirst(t *testing.T) {
	const says = "unless a TCP or UDP socket of the node matches"
	vip := header.AddrFrom(netip.MustParseAddr("192.0.2.1"))
	for _, c := range []struct {
		name  string
		flags services.AddrFlags
		proto uint8
		match xdpprog.Match
		want  bool
	}{
		{"at the node", services.AddrVIP | services.AddrLocal, header.ProtoTCP, xdpprog.MatchFrontend, true},
		{"SCTP, whose sockets are not looked up", services.AddrVIP | services.AddrLocal, header.ProtoSCTP,
			xdpprog.MatchFrontend, false},
		{"elsewhere", services.AddrVIP, header.ProtoTCP, xdpprog.MatchFrontend, false},
		{"no rule", services.AddrVIP | services.AddrLocal, header.ProtoTCP, xdpprog.MatchNone, false},
	} {
		b := services.NewBuilder(nil)
		b.SetAddr(vip, c.flags)
		s := &services.Service{ID: 1, Name: "web", Proto: c.proto, Port: 80}
		b.SetService(s)
		b.SetFrontend(&services.Frontend{Key: services.FrontendKey{Addr: vip, Port: 80, Proto: c.proto}, Service: s})
		a := answer{snapshot: b.Build(), tuple: header.Tuple{Dst: vip, DstPort: 80, Proto: c.proto}, match: c.match}
		if got := a.kernelStep().Text; strings.Contains(got, says) != c.want {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
