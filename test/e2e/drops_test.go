//go:build root

package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/gateway/flowlog"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

const (
	deniedVIP = "203.0.113.54" // UDP, for clients of 192.0.2.0/24, who are not here
	otherVIP  = "203.0.113.55" // UDP, policy Local, and nobody here
)

// deniedService denies all clients of the lab.
const deniedService = "{apiVersion: v1, kind: Service, metadata: {name: denied}, spec: {type: LoadBalancer, " +
	"ipFamilies: [IPv4], ports: [{port: 53, protocol: UDP}], loadBalancerSourceRanges: [192.0.2.0/24]}, " +
	"status: {loadBalancer: {ingress: [{ip: " + deniedVIP + "}]}}}\n---\n" +
	"{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: denied, " +
	"labels: {kubernetes.io/service-name: denied}}, addressType: IPv4, ports: [{port: 8080, protocol: UDP}], " +
	"endpoints: [{addresses: [192.0.2.200]}]}\n"

// TestDropsByService: `sluice drops` has the shares of Services and clients in the packets that
// were dropped for a reason, as they were sent in bursts, and so has the flow log.
func TestDropsByService(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "log")
	l := newLab(t, labConfig{Config: topo.Config{Clients: 2, Backends: 2, Queues: 2}, small: true, options: logOf(dir)})
	if err := l.gate.Write("denied.yaml", []byte(deniedService)); err != nil {
		t.Fatal(err)
	}
	l.apply(launch.Service{Name: "away", UDP: true, Port: dnsPort, VIPs: []string{awayVIP}, Local: true,
		Endpoints: endpoints(l.Backends...)},
		launch.Service{Name: "other", UDP: true, Port: dnsPort, VIPs: []string{otherVIP}, Local: true,
			Endpoints: endpoints(l.Backends...)})
	l.applied()

	type load struct {
		client  int
		vip     string
		packets int // of a burst
		conn    net.Conn
	}
	loads := []load{{0, awayVIP, 12, nil}, {1, awayVIP, 4, nil}, {0, otherVIP, 4, nil}, {1, deniedVIP, 6, nil},
		{0, deniedVIP, 2, nil}}
	for i := range loads {
		conn, err := l.Clients[loads[i].client].Dial(l.ctx, "udp", at(loads[i].vip, dnsPort).String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		loads[i].conn = conn
	}
	// A worker that waits for its CPU has several bursts in one window, so fewer samples. More
	// bursts are sent then: the error of a share falls with their number.
	sent := map[string]uint64{}
	for round := 1; ; round++ {
		const bursts, rounds = 400, 5
		for range bursts {
			for i := range loads {
				for range loads[i].packets {
					if _, err := loads[i].conn.Write([]byte("x")); err != nil {
						t.Fatal(err)
					}
				}
			}
			time.Sleep(12 * time.Millisecond) // more than a worker's window of samples
		}
		sent["no_local_endpoints"] += 20 * bursts
		sent["source_range"] += 8 * bursts
		var v status.DropsView
		l.eventually(10*time.Second, "the samples add up to the packets that were sent", func() bool {
			v = l.sampledDrops("--since", "5m")
			sum := map[string]uint64{}
			for i := range v.Drops {
				sum[v.Drops[i].Reason] += v.Drops[i].Packets
			}
			return has(sum, sent)
		})
		var wrong []string
		for i := range loads {
			d := &loads[i]
			name := map[string]string{awayVIP: "away", otherVIP: "other", deniedVIP: "denied"}[d.vip]
			client := l.Clients[d.client].Addr4()
			got := float64(packetsOf(&v, name, client)) / float64(round*bursts)
			all := 20.0
			if d.vip == deniedVIP {
				all = 8
			}
			if math.Abs(got-float64(d.packets))/all > 0.1 {
				wrong = append(wrong, fmt.Sprintf("%s to %s: %.2f of %v packets in a burst, %d were sent",
					client, name, got, all, d.packets))
			}
		}
		if len(wrong) == 0 {
			break
		}
		if round == rounds {
			t.Errorf("after %d bursts: %s", round*bursts, strings.Join(wrong, "; "))
			break
		}
	}
	if list := l.sampledDrops("denied").Drops; len(list) != 1 || list[0].Reason != "source_range" ||
		!strings.HasPrefix(list[0].Service, "default/denied") {
		t.Errorf("drops of denied: %+v", list)
	}
	l.eventually(10*time.Second, "the flow log has all drops", func() bool {
		sum := map[string]uint64{}
		list, _ := readLog(t, dir)
		for i := range list {
			if r := &list[i]; r.Event == flowlog.Drop {
				sum[r.Reason] += r.Packets
			}
		}
		return has(sum, sent)
	})
}

// has reports whether a sum has the packets of each reason that were sent.
func has(sum, sent map[string]uint64) bool {
	for r, n := range sent {
		if sum[r] != n {
			return false
		}
	}
	return true
}

// sampledDrops returns the answer of `sluice drops`.
func (l *lab) sampledDrops(args ...string) (v status.DropsView) {
	l.t.Helper()
	out, err := l.gate.Command(l.ctx, append([]string{"drops", "-o", "json"}, args...)...)
	if err == nil {
		err = json.Unmarshal([]byte(out), &v)
	}
	if err != nil {
		l.t.Fatalf("sluice drops: %v\n%s", err, out)
	}
	return v
}

// packetsOf returns the dropped packets of a client of a Service in the namespace default.
func packetsOf(v *status.DropsView, service string, client netip.Addr) (n uint64) {
	for i := range v.Drops {
		name, _, _ := strings.Cut(v.Drops[i].Service, ":")
		for _, c := range v.Drops[i].Clients {
			if name == "default/"+service && c.Client == client {
				n += c.Packets
			}
		}
	}
	return n
}
