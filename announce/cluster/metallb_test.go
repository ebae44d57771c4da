package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/cluster"
	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/test/bed/cluster/clustertest"
)

// theirs are objects of a MetalLB installation; some ask for unsupported features.
var theirs = map[string][]string{
	"v1beta1 ipaddresspools IPAddressPool": {"public {addresses: [192.0.2.0/24, '2001:db8:1::/112']}"},
	"v1beta2 bgppeers BGPPeer": {
		"tor {myASN: 64500, peerASN: 64501, peerAddress: 10.0.0.1, bfdProfile: fast, nodeSelectors: " +
			"[{matchLabels: {rack: a}}]}",
		"leaf {myASN: 64500, interface: eth1, dynamicASN: external}",
		"red {myASN: 64500, peerASN: 64501, peerAddress: 10.0.0.2, vrf: red}",
		"secret {myASN: 64500, peerASN: 64501, peerAddress: 10.0.0.3, passwordSecret: {name: tor}}",
	},
	"v1beta1 bgpadvertisements BGPAdvertisement": {"all {communities: [backup], localPref: 200, peers: [tor]}"},
	"v1beta1 bfdprofiles BFDProfile": {"fast {receiveInterval: 100, transmitInterval: 100, echoMode: false}",
		"echo {echoMode: true, echoInterval: 50}"},
	"v1beta1 communities Community": {"aliases {communities: [{name: backup, value: '64500:9'}]}"},
}

// installMetalLB creates MetalLB's kinds and objects.
func (l *lab) installMetalLB() {
	l.Helper()
	clustertest.Kinds(l.ctx, l.T, l.Cluster, "testdata/metallb.yaml")
	for of, list := range theirs {
		parts := strings.Fields(of)
		for _, one := range list {
			name, spec, _ := strings.Cut(one, " ")
			o := &unstructured.Unstructured{}
			must(l.T, yaml.Unmarshal([]byte(fmt.Sprintf("apiVersion: metallb.io/%s\nkind: %s\nmetadata: {name: %s}\n"+
				"spec: %s\n", parts[0], parts[2], name, spec)), &o.Object))
			kind := schema.GroupVersionResource{Group: "metallb.io", Version: parts[0], Resource: parts[1]}
			l.eventually(one, func() error { // discovery may list a kind before it is served
				_, err := l.dynamic.Resource(kind).Namespace("metallb-system").Create(l.ctx, o, metav1.CreateOptions{})
				return err
			})
			_, err := l.dynamic.Resource(kind).Namespace("a").Create(l.ctx, o, metav1.CreateOptions{}) // its left-overs
			must(l.T, err)
		}
	}
}

// TestMetalLB: MetalLB's objects are read, with the defaults of its schemas. An Event of an object
// names unsupported fields and why. Objects in other namespaces, which MetalLB does not read, are
// not read.
func TestMetalLB(t *testing.T) {
	l := newLab(t)
	for _, namespace := range []string{"sluice-system", "metallb-system", "a"} {
		_, err := l.client.CoreV1().Namespaces().Create(l.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: namespace}}, metav1.CreateOptions{})
		must(t, err)
	}
	l.installMetalLB()
	user, err := l.ServiceAccount(l.ctx, "sluice-system", "announcer", rights(t)...)
	must(t, err)
	s, err := cluster.New(cluster.Config{Client: l.RESTConfig(user), Log: slog.New(slog.DiscardHandler), Node: "n",
		Namespace: "sluice-system", Secrets: []string{"tor"}, MetalLB: "metallb-system"})
	must(t, err)
	ctx, cancel := context.WithCancel(l.ctx)
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx, func() {}) }()
	defer func() { cancel(); <-done }()
	var o *announce.Objects
	l.eventually("everything is read", func() error {
		var waiting string
		if o, waiting = s.Objects(); waiting != "" || len(o.Kinds) < 9 {
			return fmt.Errorf("waiting for %s", waiting)
		}
		return nil
	})
	for _, k := range o.Kinds {
		if k.GetNamespace() == "a" {
			t.Errorf("%s is read", kinds.RefOf(k))
		}
	}
	set, problems := (&kinds.Reader{Password: o.Password}).Read(o.Kinds)
	if len(set.Pools) != 1 || len(set.Peers) != 3 || len(set.Advertisements) != 1 ||
		len(set.Advertisements[0].Communities) != 1 || set.Peers[2].Name != "tor" || set.Peers[2].BFD == nil {
		t.Errorf("%+v", set)
	}
	want := map[string]string{
		"BFDProfile echo": "FieldNotDone spec.echoInterval (there is no echo mode: remove it); spec.echoMode (",
		"BGPPeer leaf":    "FieldNotDone spec.dynamicASN (",
		"BGPPeer red":     "FieldNotDone spec.vrf (sessions are made in the node's main routing table: reach",
		"BGPPeer secret": "Invalid passwordSecret: passwords are read only in namespace \"sluice-system\", and not " +
			"in Secret metallb-system/tor; it is not used",
	}
	if len(problems) != len(want) {
		t.Errorf("%d problems, want %d: %v", len(problems), len(want), problems)
	}
	for _, p := range problems {
		s.Report(p, false)
	}
	l.eventually("the Events", func() error {
		list, err := l.client.EventsV1().Events("metallb-system").List(l.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for about, text := range want {
			if !told(list.Items, about, text) {
				return fmt.Errorf("none about %s: %q; %d Events", about, text, len(list.Items))
			}
		}
		return nil
	})
}

// TestMetalLBIsNotListed: kinds of MetalLB are served but may not be listed, for example because
// the Role was deleted with MetalLB's namespace. Neither an announcer that starts nor one that runs
// when they are installed waits for them. Their objects are used when the right to list them is
// given.
func TestMetalLBIsNotListed(t *testing.T) {
	l := newLab(t)
	for _, namespace := range []string{"sluice-system", "metallb-system", "a"} {
		_, err := l.client.CoreV1().Namespaces().Create(l.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: namespace}}, metav1.CreateOptions{})
		must(t, err)
	}
	l.create(own("addresspools"), object("addresspools", "own", "{addresses: [198.51.100.0/24]}"))
	all := rights(t)
	few := slices.DeleteFunc(slices.Clone(all), func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.APIGroups, "metallb.io")
	})
	user, err := l.ServiceAccount(l.ctx, "sluice-system", "announcer", few...)
	must(t, err)
	follow := func() (s *cluster.Source, refused, waited func() bool) {
		var log lines
		s, err := cluster.New(cluster.Config{Client: l.RESTConfig(user), Log: slog.New(slog.NewTextHandler(&log, nil)),
			Node: "n", Namespace: "sluice-system", Secrets: []string{"tor"}, MetalLB: "metallb-system"})
		must(t, err)
		ctx, cancel := context.WithCancel(l.ctx)
		done := make(chan struct{})
		var known, again atomic.Bool
		look := func() {
			_, waiting := s.Objects()
			if waiting == "" {
				known.Store(true)
			} else if known.Load() {
				again.Store(true)
			}
		}
		go func() { defer close(done); s.Run(ctx, look) }()
		t.Cleanup(func() { cancel(); <-done })
		return s, func() bool { return log.has("cannot be listed; they are not used until they can") }, again.Load
	}
	is := func(what func() bool) func() error {
		return func() error {
			if !what() {
				return errors.New("no")
			}
			return nil
		}
	}
	has := func(s *cluster.Source, least int, unlisted bool) func() error {
		return func() error {
			o, waiting := s.Objects()
			if waiting != "" || len(o.Kinds) < least || o.Unlisted != unlisted {
				return fmt.Errorf("waiting for %q, %+v", waiting, o)
			}
			return nil
		}
	}
	early, earlyRefused, earlyWaits := follow()
	l.eventually("without MetalLB", has(early, 1, false))
	l.installMetalLB()
	late, lateRefused, lateWaits := follow()
	l.eventually("the kinds may not be listed, and one starts", has(late, 1, true))
	l.eventually("its log says so", is(lateRefused))
	l.eventually("that of the other one, too", is(earlyRefused))
	l.eventually("and it knows what it does not know", has(early, 1, true))
	_, err = l.ServiceAccount(l.ctx, "sluice-system", "announcer", all...)
	must(t, err)
	l.eventually("it may, and this one runs for long", has(early, 10, false))
	l.eventually("it may", has(late, 10, false))
	if earlyWaits() || lateWaits() {
		t.Errorf("one waited again after it had its objects: %v, %v", earlyWaits(), lateWaits())
	}
}

// lines is a log in memory.
type lines struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

// told reports whether the log has a Warning about an object of MetalLB with a reason and a text.
func told(list []eventsv1.Event, about, want string) bool {
	reason, text, _ := strings.Cut(want, " ")
	for i := range list {
		e := &list[i]
		if e.Type == "Warning" && strings.HasPrefix(e.Regarding.APIVersion, "metallb.io/") && e.Reason == reason &&
			e.Regarding.Kind+" "+e.Regarding.Name == about && strings.Contains(e.Note, text) {
			return true
		}
	}
	return false
}

// TestConvertedIsAccepted: the schemas of sluice.dev accept the output of `sluice config
// from-metallb`.
func TestConvertedIsAccepted(t *testing.T) {
	l := newLab(t)
	resources := map[string]string{}
	for resource, kind := range kindOf {
		resources[kind] = resource
	}
	n := 0
	for _, name := range []string{"fabric", "services", "secrets"} {
		text, err := os.ReadFile("../../config/metallb/testdata/" + name + ".golden")
		must(t, err)
		manifest, _, _ := strings.Cut(string(text), "=====\n")
		for _, document := range strings.Split(manifest, "---\n") {
			o := &unstructured.Unstructured{}
			must(t, yaml.Unmarshal([]byte(document), &o.Object))
			o.SetName(name + "-" + o.GetName())
			n++
			_, err := l.dynamic.Resource(own(resources[o.GetKind()])).Create(l.ctx, o,
				metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
			if err != nil {
				t.Errorf("%s: %v\n%s", name, err, document)
			}
		}
	}
	if n != 19 {
		t.Errorf("%d objects were applied, want 19", n)
	}
}
