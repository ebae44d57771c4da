package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/test/bed/topo"
)

// metricsURL is kube-proxy's default, on loopback, so there is one in each namespace.
const metricsURL = "http://127.0.0.1:10249/metrics"

var errStopped = errors.New("kube-proxy does not run")

// Metrics is what kube-proxy exports, in Prometheus' text format.
func (p *Proxy) Metrics(ctx context.Context) (string, error) {
	if p.process == nil {
		return "", errStopped
	}
	select {
	case <-p.process.Done():
		return "", topo.Final(fmt.Errorf("it ended: %w", p.process.Err()))
	default:
	}
	code, text, err := p.config.Host.Get(ctx, metricsURL)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%s: status %d", metricsURL, code)
	}
	return text, err
}

// synced reports whether each family has been programmed once. The health check does not
// tell: it says yes before the first time, too.
func (p *Proxy) synced(ctx context.Context) error {
	text, err := p.Metrics(ctx)
	if err != nil {
		return err
	}
	for _, family := range [...]string{"IPv4", "IPv6"} {
		name := `kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="` + family + `"} `
		_, rest, found := strings.Cut(text, "\n"+name)
		value, _, _ := strings.Cut(rest, "\n")
		if at, err := strconv.ParseFloat(value, 64); !found || err != nil || at == 0 {
			return fmt.Errorf("no %s rules yet", family)
		}
	}
	return nil
}

// PID is kube-proxy's process; 0 once stopped.
func (p *Proxy) PID() int {
	if p.process == nil {
		return 0
	}
	return p.process.PID()
}

// Where Settle writes its marker.
const (
	markerNamespace = "sluice-cluster"
	markerPrefix    = "settle-"
)

// Endpoints of the marker, of RFC 5737 and RFC 3849.
var markerEndpoints = map[corev1.IPFamily]netip.Addr{
	corev1.IPv4Protocol: netip.MustParseAddr("192.0.2.1"),
	corev1.IPv6Protocol: netip.MustParseAddr("2001:db8::1"),
}

// Settle returns once kube-proxy has programmed everything written before the call.
//
// It writes a marker, a dual-stack Service and its slices, whose port is another one
// each time, and waits for it in the rules of both families. A marker is seen only when
// its Service and its slice have both arrived. Watches deliver the objects of one kind
// in the order they were written, so all others have arrived then as well, and
// kube-proxy programs everything that has arrived at once.
//
// In mode ipvs a marker shows while kube-proxy is still at it; hasServer says when it is
// through. Where that cannot be told, a second marker is written: it is programmed by a
// later turn than the first, which is over then.
func (p *Proxy) Settle(ctx context.Context) error {
	err := p.mark(ctx)
	if errors.Is(err, errUntold) {
		if err = p.mark(ctx); errors.Is(err, errUntold) {
			return nil
		}
	}
	return err
}

// mark writes a marker and waits for it.
func (p *Proxy) mark(ctx context.Context) error {
	clusterIPs, err := p.writeMarker(ctx)
	if err != nil {
		return err
	}
	busy := map[string]bool{}
	err = topo.Until(ctx, startTimeout, askEvery, func(ctx context.Context) error {
		var untold error
		for _, ip := range clusterIPs {
			err := p.programmed(ctx, ip, busy)
			if errors.Is(err, errUntold) {
				untold = err
			} else if err != nil {
				return fmt.Errorf("the marker %s port %d: %w", ip, p.settled, err)
			}
		}
		return untold
	})
	if err != nil && !errors.Is(err, errUntold) {
		return fmt.Errorf("cluster: kube-proxy on %s has not programmed %w\n%s", p.config.Host.Name, err, p.Log())
	}
	return err
}

// programmed returns nil if the marker is programmed in one family. In mode ipvs it notes where
// kube-proxy was seen busy.
func (p *Proxy) programmed(ctx context.Context, clusterIP string, busy map[string]bool) error {
	if p.config.Mode == "ipvs" {
		return p.hasServer(clusterIP, busy)
	}
	return p.has(ctx, clusterIP)
}

// writeMarker writes the next marker and returns its ClusterIPs. The slices are written first, so
// that mostly one turn of kube-proxy gets both.
func (p *Proxy) writeMarker(ctx context.Context) (clusterIPs []string, err error) {
	p.settled++
	marker := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: markerNamespace, Name: markerPrefix + p.config.Node},
		Spec: corev1.ServiceSpec{
			IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
			Ports:          []corev1.ServicePort{{Name: fmt.Sprintf("p%d", p.settled), Port: int32(p.settled)}},
		},
	}
	var slices []Object
	for family, address := range markerEndpoints {
		slices = append(slices, NewSlice(marker, strings.ToLower(string(family)), family,
			discoveryv1.Endpoint{Addresses: []string{address.String()}}))
	}
	if err := p.cluster.Put(ctx, slices...); err != nil {
		return nil, err
	}
	if err := p.cluster.Put(ctx, marker); err != nil {
		return nil, err
	}
	got, err := p.cluster.client.CoreV1().Services(markerNamespace).Get(ctx, marker.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("cluster: read the marker: %w", err)
	}
	return got.Spec.ClusterIPs, nil
}

// has reports whether the marker, in one family, has rules that lead to an endpoint.
func (p *Proxy) has(ctx context.Context, clusterIP string) error {
	six := strings.Contains(clusterIP, ":")
	var command []string
	if p.config.Mode == "nftables" {
		family := "ip"
		if six {
			family = "ip6"
		}
		element := fmt.Sprintf("{ %s . tcp . %d }", clusterIP, p.settled)
		command = []string{"nft", "get", "element", family, "kube-proxy", "service-ips", element}
	} else {
		tool := "iptables"
		if six {
			tool = "ip6tables"
		}
		command = []string{tool, "-w", "-t", "nat", "-S", "KUBE-SERVICES"}
	}
	var out []byte
	err := p.config.Host.Run(func() (err error) {
		out, err = exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w: %s", command[0], err, bytes.TrimSpace(out))
	}
	// A rule's comment names namespace, service and port (pkg/proxy/iptables/proxier.go).
	comment := fmt.Sprintf("%s/%s%s:p%d cluster IP", markerNamespace, markerPrefix, p.config.Node, p.settled)
	if p.config.Mode == "iptables" && !strings.Contains(string(out), comment) {
		return errors.New("no rule of it")
	}
	return nil
}
