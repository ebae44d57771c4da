//go:build root

package single

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/topo"
)

const (
	restarts = 5 // how often the pods are started anew
	// datagramRate is of each family, a second. Kubelet and runtime take the processors that
	// clients and pods run on for up to a second when they start a pod, and a socket has room for
	// 270.
	datagramRate = 200
)

// rollingUpdate changes the image under open connections and numbered datagrams of both families,
// and starts the pods anew. Each pod takes over from the one before, and no datagram is lost or
// comes twice.
func (s *scenario) rollingUpdate(ctx context.Context) {
	const open = 200
	before, err := s.GatewayPod(ctx)
	s.must(err)
	flows, err := s.Client0.OpenTCP(ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(webVIP4, webPort),
		at(webVIP6, webPort)},
		Flows: open, Interval: 200 * time.Millisecond, Timeout: 30 * time.Second})
	s.must(err)
	if n := flows.Broken(); n > 0 {
		s.t.Fatalf("%d of %d connections could not be opened", n, open)
	}
	loads := map[string]*topo.Numbered{}
	for vip, from := range map[string]netip.Addr{webVIP4: s.Client0.Addr4(), webVIP6: s.Client0.Addr6()} {
		loads[vip], err = s.Client0.Number(topo.NumberedLoad{From: from, To: at(vip, webPort), Rate: datagramRate})
		s.must(err)
	}
	var gaps []time.Duration
	returned := 0
	for n := range 2 + restarts {
		began := time.Now()
		what := "restart"
		switch n {
		case 0, 1:
			version := []string{"b", "a"}[n]
			what = "update to image " + version
			s.apply(ctx, version)
		default:
			s.must(s.Restart(ctx, began))
		}
		after, refused := s.replaced(ctx, before)
		if refused {
			returned++
		}
		before = after
		v := s.takenOver(ctx, after)
		gaps = append(gaps, time.Duration(v.GapMicros)*time.Microsecond)
		s.counted(ctx, "web", what, open, func() string {
			s.answeredTwice(ctx, flows) // the first may have been counted before
			return fmt.Sprintf("rolled out in %s, packets waited %s, %d of %d connections broken, all answered again",
				time.Since(began).Round(100*time.Millisecond), gaps[n], flows.Broken(), open)
		})
	}
	slices.Sort(gaps)
	broken := flows.Broken()
	r := flows.Stop()
	s.t.Logf("%d connections over %d hand-overs from pod to pod: %d broken, %d answers, the slowest %s; packets "+
		"waited %s (median), %s (most); %d containers of pods that had handed over were started again, and refused",
		open, len(gaps), broken, r.Requests, time.Duration(r.Latency.Max())*time.Microsecond, gaps[len(gaps)/2],
		gaps[len(gaps)-1], returned)
	if broken > 0 || r.Failed() > 0 {
		s.t.Errorf("connections broke: %v", r.Errors)
	}
	for vip, load := range loads {
		sent, lost, repeated, err := load.Finish()
		s.t.Logf("%s: %d numbered datagrams each way, %d a second, %d lost, %d repeated", vip, sent, datagramRate, lost,
			repeated)
		if lost > 0 || repeated > 0 || sent == 0 || err != nil {
			s.t.Errorf("%s: of %d datagrams %d lost, %d repeated, %v", vip, sent, lost, repeated, err)
		}
	}
}

// answeredTwice waits until every connection has had two answers from now on.
func (s *scenario) answeredTwice(ctx context.Context, flows *topo.Flows) {
	s.t.Helper()
	s.must(flows.AnsweredAgain(ctx, patience, 2))
}

// replaced waits until a pod is the only one, another than before. refused reports whether a
// container of that one was started again after it had handed over, and got nothing back.
func (s *scenario) replaced(ctx context.Context, before *corev1.Pod) (after *corev1.Pod, refused bool) {
	s.t.Helper()
	logs := s.Gateway.Path(fmt.Sprintf("/var/log/pods/%s_%s_%s/sluice/*.log", before.Namespace, before.Name,
		before.UID))
	s.must(Eventually(ctx, patience, func(ctx context.Context) error {
		files, _ := filepath.Glob(logs) // the pattern is well-formed
		for _, f := range files {
			text, _ := os.ReadFile(f) // it goes with its pod
			refused = refused || strings.Contains(string(text), "has already replaced the pod that asks")
		}
		list, err := s.Client().CoreV1().Pods(ReleaseNamespace).List(ctx, metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/name=sluice", FieldSelector: "spec.nodeName=" + s.Gateway.Name})
		switch {
		case err != nil:
			return err
		case len(list.Items) != 1:
			return fmt.Errorf("there are %d pods", len(list.Items))
		case list.Items[0].UID == before.UID:
			return fmt.Errorf("pod %s is still the only one", before.Name)
		}
		after = &list.Items[0]
		return s.Installed(ctx, time.Second)
	}))
	return after, refused
}

// takenOver returns how the daemon of a pod took over.
func (s *scenario) takenOver(ctx context.Context, pod *corev1.Pod) status.TakeOverView {
	s.t.Helper()
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.daemon()))
	s.must(err)
	if !strings.Contains(string(env), "POD_UID="+string(pod.UID)+"\x00") {
		s.t.Errorf("the daemon is not that of pod %s", pod.Name)
	}
	d := s.Daemon()
	v, err := d.Status(ctx, false)
	s.must(err)
	if v.TakeOver == nil || v.TakeOver.At.IsZero() {
		s.must(errors.New("pod " + pod.Name + " did not take over: " + fmt.Sprintf("%+v", v.TakeOver)))
	}
	return *v.TakeOver
}

// refusedUpdate starts the pod anew with another size of the flow table, which no process can take
// over: the next pod waits, is Ready nevertheless, and takes over by the table once the one before
// is deleted.
func (s *scenario) refusedUpdate(ctx context.Context) {
	const open = 50
	before, err := s.GatewayPod(ctx)
	s.must(err)
	flows, err := s.Client0.OpenTCP(ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(webVIP4, webPort),
		at(webVIP6, webPort)}, Flows: open, Interval: 200 * time.Millisecond, Timeout: 30 * time.Second})
	s.must(err)
	began := time.Now()
	s.apply(ctx, "a", "config: {flows: {ipv4: 131072}}")
	s.must(s.Restart(ctx, began))
	s.replaced(ctx, before)
	d := s.Daemon()
	v, err := d.Status(ctx, false)
	s.must(err)
	if v.TakeOver == nil || !v.TakeOver.At.IsZero() || !strings.HasPrefix(strings.Join(v.TakeOver.Refused, ";"),
		"flow table: ") {
		s.t.Errorf("the pod took over, or was refused for another reason: %+v", v.TakeOver)
	}
	s.answeredTwice(ctx, flows)
	rolled := time.Since(began).Round(100 * time.Millisecond)
	broken := flows.Broken()
	r := flows.Stop()
	s.t.Logf("another size of the flow table: rolled out in %s, %d of %d connections broken, the slowest answer %s",
		rolled, broken, open, time.Duration(r.Latency.Max())*time.Microsecond)
	if broken > 0 || r.Failed() > 0 {
		s.t.Errorf("connections broke: %v", r.Errors)
	}
}
