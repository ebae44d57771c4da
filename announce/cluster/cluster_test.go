package cluster_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/cluster"
	"sluice.dev/sluice/announce/kinds"
	bench "sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/cluster/clustertest"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// lab is an API server with the kinds of sluice.dev.
type lab struct {
	*testing.T
	*bench.Cluster
	ctx     context.Context
	client  *kubernetes.Clientset
	dynamic dynamic.Interface
}

func newLab(t *testing.T) *lab {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), machine.Slower(3*time.Minute))
	t.Cleanup(cancel)
	c := clustertest.Start(ctx, t, bench.Config{})
	l := &lab{T: t, Cluster: c, ctx: ctx, client: c.Client()}
	var err error
	l.dynamic, err = dynamic.NewForConfig(c.RESTConfig(c.Admin()))
	must(t, err)
	const files = "../../deploy/chart/files/"
	clustertest.Kinds(ctx, t, c, files+"addresspools.yaml", files+"announcements.yaml")
	return l
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (l *lab) create(kind schema.GroupVersionResource, text string) {
	l.Helper()
	o := &unstructured.Unstructured{}
	must(l.T, yaml.Unmarshal([]byte(text), &o.Object))
	_, err := l.dynamic.Resource(kind).Create(l.ctx, o, metav1.CreateOptions{})
	must(l.T, err)
}

func own(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: kinds.Group, Version: "v1alpha1", Resource: resource}
}

var kindOf = map[string]string{"bgppeers": "BGPPeer", "bgpadvertisements": "BGPAdvertisement",
	"l2advertisements": "L2Advertisement",
	"bfdprofiles":      "BFDProfile", "communities": "Community", "addresspools": "AddressPool"}

func object(resource, name, spec string) string {
	return fmt.Sprintf("apiVersion: sluice.dev/v1alpha1\nkind: %s\nmetadata: {name: %s}\nspec: %s\n", kindOf[resource],
		name, spec)
}

// rights are the chart's roles.
func rights(t *testing.T) (rules []rbacv1.PolicyRule) {
	t.Helper()
	text, err := os.ReadFile("../../deploy/manifests/announcer.yaml")
	must(t, err)
	for _, document := range strings.Split(string(text), "\n---\n") {
		var role struct {
			Kind  string
			Rules []rbacv1.PolicyRule
		}
		must(t, yaml.Unmarshal([]byte(document), &role))
		if role.Kind == "ClusterRole" || role.Kind == "Role" {
			rules = append(rules, role.Rules...)
		}
	}
	// The Role of the chart with announcer.passwordSecrets [tor].
	return append(rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"},
		ResourceNames: []string{"tor"}, Verbs: []string{"list", "watch"}})
}

func (l *lab) eventually(what string, is func() error) {
	l.Helper()
	within := machine.Slower(30 * time.Second)
	if err := topo.Until(l.ctx, within, 10*time.Millisecond, func(context.Context) error { return is() }); err != nil {
		l.Fatalf("%s: not within %v: %v", what, within, err)
	}
}

// TestRefused: the schema rejects mistakes and names the field.
func TestRefused(t *testing.T) {
	l := newLab(t)
	text, err := os.ReadFile("testdata/refused.txt")
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		spec, want, _ := strings.Cut(strings.TrimSpace(line), " => ")
		resource, spec, _ := strings.Cut(spec, " ")
		o := &unstructured.Unstructured{}
		must(t, yaml.Unmarshal([]byte(object(resource, "bad", spec)), &o.Object))
		_, err := l.dynamic.Resource(own(resource)).Create(l.ctx, o, metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s %s: %v, want %q", resource, spec, err, want)
		}
	}
}

// TestSource: all objects of an API server are read, and their changes, and Events are written.
func TestSource(t *testing.T) {
	l := newLab(t)
	for resource, specs := range map[string][]string{
		"addresspools": {"{addresses: [192.0.2.0/24]}"},
		"bgppeers": {"{myASN: 64500, peerASN: 64501, peerAddress: 10.0.0.1, holdTime: 90s, keepaliveTime: 30s, " +
			"bfdProfile: " +
			"bfdprofiles0, passwordSecret: {name: tor}, nodeSelectors: [{matchLabels: {rack: a}}], routerID: 10.0.0.9}",
			"{myASN: 64500, interface: eth0, enableGracefulRestart: true}"},
		"bgpadvertisements": {"{communities: [backup, '64500:7', 'large:1:2:3'], localPref: 200, aggregationLength: " +
			"24}", "{}"},
		"l2advertisements": {"{interfaces: [eth0], nodeSelectors: [{matchLabels: {rack: a}}]}", "{}"},
		"bfdprofiles":      {"{receiveInterval: 100, transmitInterval: 100}"},
		"communities":      {"{communities: [{name: backup, value: '64500:9'}]}"},
	} {
		for i, spec := range specs {
			l.create(own(resource), object(resource, fmt.Sprint(resource, i), spec))
		}
	}
	for _, namespace := range []string{"sluice-system"} {
		_, err := l.client.CoreV1().Namespaces().Create(l.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: namespace}}, metav1.CreateOptions{})
		must(t, err)
	}
	_, err := l.client.CoreV1().Secrets("sluice-system").Create(l.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Name: "tor"}, Type: corev1.SecretTypeBasicAuth, StringData: map[string]string{"password": "secret"}},
		metav1.CreateOptions{})
	must(t, err)
	_, err = l.client.CoreV1().Secrets("sluice-system").Create(l.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Name: "other"}, Type: corev1.SecretTypeBasicAuth, StringData: map[string]string{"password": "secret"}},
		metav1.CreateOptions{})
	must(t, err)
	_, err = l.client.CoreV1().Nodes().Create(l.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n",
		Labels: map[string]string{"rack": "a"}}}, metav1.CreateOptions{})
	must(t, err)
	_, err = l.client.CoreV1().Services("default").Create(l.ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Name: "web", Labels: map[string]string{"app": "web"}}, Spec: corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	must(t, err)
	user, err := l.ServiceAccount(l.ctx, "sluice-system", "announcer", rights(t)...)
	must(t, err)
	s, err := cluster.New(cluster.Config{Client: l.RESTConfig(user), Log: slog.New(slog.DiscardHandler), Node: "n",
		Namespace: "sluice-system", Secrets: []string{"tor"}, MetalLB: "metallb-system"})
	must(t, err)
	ctx, cancel := context.WithCancel(l.ctx)
	changed, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	defer func() { cancel(); <-done }()
	var o *announce.Objects
	l.eventually("everything is read", func() error {
		var waiting string
		if o, waiting = s.Objects(); waiting != "" {
			return fmt.Errorf("waiting for %s", waiting)
		}
		return nil
	})
	set, problems := (&kinds.Reader{Password: o.Password}).Read(o.Kinds)
	if len(problems) > 0 || len(set.Peers) != 2 || set.Peers[0].Password != "secret" || set.Peers[0].BFD == nil ||
		len(set.Advertisements) != 2 || len(set.Pools) != 1 {
		t.Errorf("%+v, %v", set, problems)
	}
	if _, err := o.Password("", "other"); err == nil || !strings.Contains(err.Error(), "announcer.passwordSecrets") {
		t.Errorf("a Secret that is not named: %v", err)
	}
	if o.Node.Labels["rack"] != "a" || o.Node.Cordoned || o.Services["default/web"]["app"] != "web" ||
		o.UIDs["default/web"] == "" {
		t.Errorf("%+v", o)
	}
	_, err = l.client.CoreV1().Nodes().Patch(l.ctx, "n", types.StrategicMergePatchType,
		[]byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
	must(t, err)
	l.eventually("the node is cordoned", func() error {
		select {
		case <-changed:
		default:
		}
		if o, _ := s.Objects(); o == nil || !o.Node.Cordoned {
			return fmt.Errorf("%+v", o)
		}
		return nil
	})
	_, err = l.client.CoreV1().Nodes().Patch(l.ctx, "n", types.StrategicMergePatchType, []byte(
		`{"status":{"conditions":[{"type":"NetworkUnavailable","status":"True","message":"no route"}]}}`),
		metav1.PatchOptions{}, "status")
	must(t, err)
	l.eventually("the node's network is unavailable", func() error {
		o, _ := s.Objects()
		if o == nil || !strings.HasSuffix(o.Node.NetworkUnavailable, "NetworkUnavailable: no route") {
			return fmt.Errorf("%+v", o)
		}
		return nil
	})
	s.Report(kinds.Problem{About: set.Peers[0].Ref, Reason: kinds.FieldNotDone, Note: "a note"}, false)
	l.eventually("the Event", func() error {
		list, err := l.client.EventsV1().Events("").List(l.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if e := &list.Items[i]; e.Regarding.Name == "bgppeers0" && e.Note == "a note" && e.Type == "Warning" {
				return nil
			}
		}
		return fmt.Errorf("%d Events", len(list.Items))
	})
}
