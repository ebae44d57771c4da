//go:build root

package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

const (
	directVNI  = 20942
	directPort = 81
	directUDP  = 82
)

// runOn runs a program on a host and returns its output.
func runOn(h *topo.Host, stdin, name string, args ...string) (out string, err error) {
	err = h.Run(func() error {
		c := exec.Command(name, args...)
		c.Stdin = strings.NewReader(stdin)
		b, err := c.CombinedOutput()
		out = string(b)
		return err
	})
	if err != nil {
		err = fmt.Errorf("%s: %s %v: %w: %s", h.Name, name, args, err, out)
	}
	return out, err
}

// directServices are a TCP and a UDP Service with direct return, with the endpoints of some hosts.
func directServices(hosts ...*topo.Host) []launch.Service {
	s := launch.Service{Name: "direct", Port: directPort, VIPs: []string{keepVIP4, keepVIP6}, Local: true,
		Endpoints: endpoints(hosts...), Annotations: map[string]string{"sluice.dev/forwarding": "direct"}}
	u := s
	u.Name, u.UDP, u.Port = "direct-udp", true, directUDP
	return []launch.Service{s, u}
}

// directNodes is the number of nodes in a directLab.
const directNodes = 3

// directLab is a network in which nodes reach clients without the gateway. The first backends are
// nodes whose pods use their addresses; nftables translates there as kube-proxy does for policy
// Local. v6: the nodes' InternalIPs are IPv6 addresses. The last backend may be another gateway.
func directLab(t *testing.T, v6 bool, options string) (l *lab, nodes string) {
	t.Helper()
	l = newLab(t, labConfig{Config: topo.Config{OneArmed: true, Backends: directNodes + 1, Queues: 2}, small: true,
		options: fmt.Sprintf("directReturn: {vni: %d}\n", directVNI) + options})
	other := l.Backends[directNodes]
	var list strings.Builder
	for _, h := range l.Backends[:directNodes] {
		a := h.Addr4()
		if v6 {
			a = h.Addr6()
		}
		fmt.Fprintf(&list, "---\napiVersion: v1\nkind: Node\nmetadata: {name: %s}\n"+
			"status: {addresses: [{type: InternalIP, address: \"%s\"}]}\n", h.Name, a)
		l.endTunnel(h, l.Gateway, other)
		var rules strings.Builder
		rules.WriteString("table inet standin {\nchain prerouting {\ntype nat hook prerouting priority dstnat;\n")
		for _, f := range []struct{ ip, vip, to string }{
			{"ip", keepVIP4, fmt.Sprintf("%v:%d", h.Addr4(), backendPort)},
			{"ip6", keepVIP6, fmt.Sprintf("[%v]:%d", h.Addr6(), backendPort)},
		} {
			fmt.Fprintf(&rules, "%s daddr %s tcp dport %d dnat %s to %s\n", f.ip, f.vip, directPort, f.ip, f.to)
			fmt.Fprintf(&rules, "%s daddr %s udp dport %d dnat %s to %s\n", f.ip, f.vip, directUDP, f.ip, f.to)
		}
		rules.WriteString("}\n}\n")
		nft(l.t, h, rules.String())
	}
	l.countReplies()
	if err := l.gate.Write("nodes.yaml", []byte(list.String())); err != nil {
		t.Fatal(err)
	}
	l.apply(directServices(l.Backends[:directNodes]...)...)
	l.applied()
	return l, list.String()
}

// endTunnel prepares a node for the tunnel of gateways.
func (l *lab) endTunnel(node *topo.Host, gateways ...*topo.Host) {
	l.t.Helper()
	args := []string{"node", "apply", "--vni", fmt.Sprint(directVNI)}
	for _, g := range gateways {
		args = append(args, "--gateway", g.Addr4().String(), "--gateway", g.Addr6().String())
	}
	l.must(runOn(node, "", daemonBinary, args...))
}

// countReplies counts packets from the VIPs at the gateway. noReplies expects none.
func (l *lab) countReplies() {
	l.t.Helper()
	nft(l.t, l.Gateway, "table inet replies {\nchain prerouting {\ntype filter hook prerouting priority raw;\n"+
		"ip saddr "+keepVIP4+" counter\nip6 saddr "+keepVIP6+" counter\n}\n}\n")
}

func (l *lab) noReplies() {
	l.t.Helper()
	if out := l.must(runOn(l.Gateway, "", "nft", "list", "table", "inet", "replies")); strings.Count(out,
		"counter packets 0 bytes 0") != 2 {
		l.t.Errorf("replies passed the gateway:\n%s", out)
	}
}

func (l *lab) must(out string, err error) string {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
	return out
}

// TestDirectReturn: clients reach pods through the tunnel and get answers from the nodes. Pods see
// the clients' addresses, no reply passes the gateway, and flows stay when endpoints change and
// when the gateway is killed. Packets up to the link's MTU pass, in both directions.
func TestDirectReturn(t *testing.T) {
	t.Parallel()
	for _, outer := range []string{"IPv4", "IPv6"} {
		t.Run("nodes over "+outer, func(t *testing.T) { testDirectReturn(t, outer == "IPv6") })
	}
}

func testDirectReturn(t *testing.T, v6 bool) {
	l, _ := directLab(t, v6, "")
	c := l.Clients[0]
	tcp := []netip.AddrPort{at(keepVIP4, directPort), at(keepVIP6, directPort)}
	seen := map[string]bool{c.Addr4().String(): true, c.Addr6().String(): true}
	r, err := c.HTTP(l.ctx, topo.HTTPLoad{Targets: tcp, Requests: 300, Concurrency: 8})
	if err != nil || r.Failed() > 0 || len(r.Shares) != directNodes {
		t.Fatalf("%v %v", err, r)
	}
	for client := range r.Clients {
		if !seen[client] {
			t.Errorf("a pod saw %s, clients are %v", client, seen)
		}
	}
	for _, target := range tcp {
		if _, err := c.Upload(l.ctx, target, 20<<20); err != nil {
			t.Errorf("upload to %v: %v", target, err)
		}
		if _, err := c.Download(l.ctx, target, 20<<20); err != nil {
			t.Errorf("download from %v: %v", target, err)
		}
	}
	l.flowsStay(t, tcp)
	l.onlyGateways(t)
	l.noReplies()
	// A node without the device answers late packets of the tunnel with ICMP errors, which the
	// gateway's kernel counts as damaged because it has no socket for them.
	l.checkDamage()
	l.damaged = true
	l.examined(t, "the MTU towards")
	for _, h := range l.Backends[:directNodes] {
		l.must(runOn(h, "", daemonBinary, "node", "remove"))
		if out, err := runOn(h, "", "ip", "-o", "link", "show", "type", "vxlan"); err != nil || out != "" {
			t.Errorf("left behind: %v %s", err, out)
		}
	}
	l.examined(t, "UDP port 4789 is closed")
}

// examined expects what `sluice doctor` finds about the tunnel, and that it finds no closed port
// unless that is expected.
func (l *lab) examined(t *testing.T, want string) {
	t.Helper()
	out, err := l.gate.Command(l.ctx, "doctor")
	if err != nil { // something of this host is not fit
		out = err.Error()
	}
	const closed = "is closed"
	if !strings.Contains(out, want) || strings.Contains(want, closed) != strings.Contains(out, closed) {
		t.Errorf("sluice doctor:\n%s", out)
	}
}

// TestDirectReturnByAnotherGateway: a gateway is killed, and the network sends its clients' packets
// to another one, which knows none of their connections. All continue.
func TestDirectReturnByAnotherGateway(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "seed")
	if err := os.WriteFile(file, []byte(strings.Repeat("a5", 16)), 0o600); err != nil {
		t.Fatal(err)
	}
	seed := "maglev: {seedFile: " + file + "}\n"
	l, nodes := directLab(t, false, seed)
	if err := l.Backends[directNodes].SetSysctl("net/ipv4/ip_local_reserved_ports", "16384-29999"); err != nil {
		t.Fatal(err)
	}
	other, err := launch.New(launch.Config{Sluice: daemonBinary, Host: l.Backends[directNodes], NodeName: "other",
		Options: fmt.Sprintf("directReturn: {vni: %d}\nflows: {ipv4: 65536, ipv6: 65536}\n", directVNI) + seed})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(other.Stop(), other.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(other.Write("nodes.yaml", []byte(nodes)),
		other.Apply(directServices(l.Backends[:directNodes]...)...), other.Start(l.ctx)); err != nil {
		t.Fatalf("%v\n%s", err, other.Log())
	}
	flows, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Flows: 300, Interval: 300 * time.Millisecond,
		Targets: []netip.AddrPort{at(keepVIP4, directPort), at(keepVIP6, directPort)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.gate.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct {
		vip string
		via netip.Addr
	}{{keepVIP4, l.Backends[directNodes].Addr4()}, {keepVIP6, l.Backends[directNodes].Addr6()}} {
		vip := netip.MustParseAddr(r.vip)
		if err := l.Clients[0].Route(netip.PrefixFrom(vip, vip.BitLen()), r.via); err != nil {
			t.Fatal(err)
		}
	}
	if err := flows.AnsweredAgain(l.ctx, 30*time.Second, 2); err != nil {
		t.Errorf("by the other gateway: %v", err)
	}
	if r := flows.Finish(); r.Failed() > 0 || flows.Broken() > 0 {
		t.Errorf("%d broken, %v", flows.Broken(), r)
	}
	if s, err := other.Client.Stats(l.ctx); err != nil || s.Workers[0].FlowsCreated+s.Workers[1].FlowsCreated < 300 {
		t.Errorf("%+v, %v", s.Workers, err)
	}
	if err := l.gate.Start(l.ctx); err != nil {
		t.Error(err)
	}
}

// flowsStay opens flows, takes endpoints away, brings them back and kills the gateway.
func (l *lab) flowsStay(t *testing.T, tcp []netip.AddrPort) {
	t.Helper()
	load := topo.FlowLoad{Targets: tcp, Flows: 120, Interval: 200 * time.Millisecond}
	flows, err := l.Clients[0].OpenTCP(l.ctx, load)
	if err != nil {
		t.Fatal(err)
	}
	load.Targets, load.Flows = []netip.AddrPort{at(keepVIP4, directUDP), at(keepVIP6, directUDP)}, 40
	datagrams, err := l.Clients[0].OpenUDP(l.ctx, load)
	if err != nil {
		t.Fatal(err)
	}
	for _, hosts := range [][]*topo.Host{l.Backends[:1], l.Backends[1:2], l.Backends[:directNodes]} {
		l.apply(directServices(hosts...)[0]) // UDP flows follow their endpoints
		l.applied()
		before := flows.States()
		if err := flows.AnsweredAgain(l.ctx, 20*time.Second, 2); err != nil {
			t.Errorf("%d nodes: %v, %d broken of %d", len(hosts), err, flows.Broken(), len(before))
		}
	}
	if r := datagrams.Finish(); r.Failed() > 0 { // before kill -9, which loses datagrams
		t.Errorf("UDP: %d broken, %v", datagrams.Broken(), r)
	}
	l.killAndStart()
	l.applied()
	if err := flows.AnsweredAgain(l.ctx, 20*time.Second, 2); err != nil {
		t.Errorf("after kill -9: %v", err)
	}
	l.seesDirectFlows(t)
	if r := flows.Finish(); r.Failed() > 0 || flows.Broken() > 0 {
		t.Errorf("TCP: %d broken, %v", flows.Broken(), r)
	}
}

// seesDirectFlows checks what the commands say.
func (l *lab) seesDirectFlows(t *testing.T) {
	t.Helper()
	n := map[string]int{}
	err := l.gate.Client.Flows(l.ctx, status.FlowFilter{Service: "default/direct"}, func(f *status.FlowView) error {
		n[f.Forwarding+" "+f.State]++
		return nil
	})
	if err != nil || n["direct UNCONFIRMED"] < 120 {
		t.Errorf("flows: %v %v", err, n)
	}
	services, err := l.gate.Client.Services(l.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range services {
		s := &services[i]
		if direct := strings.HasPrefix(s.Name, "direct"); direct != (s.Forwarding == "direct") ||
			direct && (s.Traffic.ToClient != 0 || !s.Frontends[0].KeepClient) ||
			s.Name == "direct" && s.Traffic.ToBackend == 0 {
			t.Errorf("%+v", s)
		}
	}
	v, err := l.gate.Client.Explain(l.ctx, &status.ExplainQuery{
		From: netip.AddrPortFrom(l.Clients[0].Addr4(), 50000), To: at(keepVIP4, directPort), Protocol: "TCP"})
	if err != nil || !strings.Contains(fmt.Sprint(v.Steps), "in a VXLAN tunnel to the node") {
		t.Errorf("explained as %+v, %v", v.Steps, err)
	}
}

// onlyGateways sends a packet of the tunnel from a host that is no gateway: the node drops and
// counts it.
func (l *lab) onlyGateways(t *testing.T) {
	t.Helper()
	node := l.Backends[0]
	ctx, cancel := context.WithTimeout(l.ctx, 10*time.Second)
	defer cancel()
	forged := make([]byte, 64)
	forged[0] = 0x08
	binary.BigEndian.PutUint32(forged[4:], directVNI<<8)
	for _, to := range []netip.Addr{node.Addr4(), node.Addr6()} {
		c, err := l.Clients[0].Dial(ctx, "udp", netip.AddrPortFrom(to, 4789).String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(forged)
		c.Close()
	}
	out := ""
	err := topo.Until(ctx, 10*time.Second, 100*time.Millisecond, func(context.Context) error {
		out, _ = runOn(node, "", daemonBinary, "node", "check", "--vni", fmt.Sprint(directVNI))
		if !strings.Contains(out, "2 packets from others dropped") {
			return fmt.Errorf("sluice node check: %s", out)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if strings.Contains(out, "fail ") {
		t.Errorf("sluice node check:\n%s", out)
	}
}
