package deploy

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/announce/layer2"
	"sluice.dev/sluice/config"
	"sluice.dev/sluice/host/hostlink"
)

const manifestsFile = "manifests/sluice.yaml"

// objects are the decoded manifests; unknown fields are errors.
type objects struct {
	namespace      corev1.Namespace
	serviceAccount corev1.ServiceAccount
	configMap      corev1.ConfigMap
	role           rbacv1.ClusterRole
	binding        rbacv1.ClusterRoleBinding
	ownRole        rbacv1.Role
	ownBinding     rbacv1.RoleBinding
	daemonSet      appsv1.DaemonSet
}

func readManifests(t *testing.T) (o objects) {
	t.Helper()
	text, err := os.ReadFile(manifestsFile)
	if err != nil {
		t.Fatal(err)
	}
	into := map[string]any{
		"v1 Namespace": &o.namespace, "v1 ServiceAccount": &o.serviceAccount, "v1 ConfigMap": &o.configMap,
		"rbac.authorization.k8s.io/v1 ClusterRole":        &o.role,
		"rbac.authorization.k8s.io/v1 ClusterRoleBinding": &o.binding,
		"rbac.authorization.k8s.io/v1 Role":               &o.ownRole,
		"rbac.authorization.k8s.io/v1 RoleBinding":        &o.ownBinding,
		"apps/v1 DaemonSet":                               &o.daemonSet,
	}
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			t.Fatal(err)
		}
		name := kind.APIVersion + " " + kind.Kind
		if into[name] == nil {
			t.Fatalf("%s: a second %s, or one that is not expected", manifestsFile, name)
		}
		if err := yaml.UnmarshalStrict(doc, into[name]); err != nil {
			t.Errorf("%s: %s: %v", manifestsFile, name, err)
		}
		delete(into, name)
	}
	for name := range into {
		t.Errorf("%s: no %s", manifestsFile, name)
	}
	return o
}

// The controller has exactly these rights: it writes the status of Services, and one Lease. It runs
// as user nobody, without capabilities.
func TestControllerManifests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("manifests/controller.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	var deployment appsv1.Deployment
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		var role rbacv1.ClusterRole // a Role has the same fields
		if err := yaml.Unmarshal(doc, &role); err != nil {
			t.Fatal(err)
		}
		switch role.Kind {
		case "ClusterRole", "Role":
			if err := yaml.UnmarshalStrict(doc, &role); err != nil {
				t.Error(err)
			}
		case "Deployment":
			if err := yaml.UnmarshalStrict(doc, &deployment); err != nil {
				t.Error(err)
			}
			continue
		default:
			continue
		}
		for _, r := range role.Rules {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					got = append(got, fmt.Sprintf("%s %s/%s %s %s", role.Kind, r.APIGroups[0], resource, verb,
						strings.Join(r.ResourceNames, ",")))
				}
			}
		}
	}
	want := []string{
		"ClusterRole /namespaces list ", "ClusterRole /namespaces watch ", "ClusterRole /nodes list ",
		"ClusterRole /nodes watch ", "ClusterRole /services get ", "ClusterRole /services list ",
		"ClusterRole /services watch ", "ClusterRole /services/status update ",
		"ClusterRole events.k8s.io/events create ", "ClusterRole metallb.io/ipaddresspools list ",
		"ClusterRole metallb.io/ipaddresspools watch ", "ClusterRole sluice.dev/addresspools list ",
		"ClusterRole sluice.dev/addresspools watch ", "Role coordination.k8s.io/leases create ",
		"Role coordination.k8s.io/leases get sluice-controller",
		"Role coordination.k8s.io/leases update sluice-controller",
	}
	slices.Sort(got)
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	pod := deployment.Spec.Template.Spec
	c := pod.Containers[0]
	if pod.HostNetwork || !*pod.SecurityContext.RunAsNonRoot || *c.SecurityContext.AllowPrivilegeEscalation ||
		!*c.SecurityContext.ReadOnlyRootFilesystem || len(c.SecurityContext.Capabilities.Add) > 0 ||
		!slices.Equal(c.SecurityContext.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("the pod may more than it must: %+v, %+v", pod.SecurityContext, c.SecurityContext)
	}
	if s := deployment.Spec.Selector.MatchLabels["app.kubernetes.io/name"]; s == "sluice" {
		t.Error("the gateways' selector matches the controller's pods")
	}
	if !slices.Contains(c.Args, "--lease=sluice-controller") {
		t.Errorf("the Lease is not the one of the Role: %q", c.Args)
	}
}

// TestMemoryLimits: each program's pod has a memory limit, and Go a softer one below it. The
// gateway's limit has room for its default tables twice, and for the sum in docs/operations.md.
func TestMemoryLimits(t *testing.T) {
	t.Parallel()
	c := config.Default()
	const mebi = 1 << 20
	tables := 94*c.Flows.IPv4 + 160*c.Flows.IPv6 + 103*c.Tuning.AffinityClients + 64*c.Tuning.LimitSources
	for name, most := range map[string]int{"sluice": 2*tables + 1536*mebi, "controller": 512 * mebi,
		"announcer": 512 * mebi, "node": 128 * mebi} {
		text, err := os.ReadFile("manifests/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		var pod struct {
			Spec struct{ Template corev1.PodTemplateSpec }
		}
		for _, doc := range bytes.Split(text, []byte("\n---\n")) {
			var kind metav1.TypeMeta
			if err := yaml.Unmarshal(doc, &kind); err != nil {
				t.Fatal(err)
			}
			if kind.Kind == "DaemonSet" || kind.Kind == "Deployment" {
				if err := yaml.Unmarshal(doc, &pod); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, c := range pod.Spec.Template.Spec.Containers {
			limit := c.Resources.Limits.Memory().Value()
			if limit < int64(most) || limit >= int64(most)+mebi {
				t.Errorf("%s: the memory limit is %d MiB, want %d", name, limit/mebi, most/mebi)
			}
			if request := c.Resources.Requests.Memory().Value(); request == 0 || request > limit {
				t.Errorf("%s: %d bytes of memory are requested, of %d", name, request, limit)
			}
			i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" })
			if i < 0 {
				t.Errorf("%s: no GOMEMLIMIT", name)
				continue
			}
			soft, err := resource.ParseQuantity(strings.TrimSuffix(c.Env[i].Value, "B"))
			if err != nil || soft.Value() <= 0 || soft.Value() > limit*9/10 {
				t.Errorf("%s: GOMEMLIMIT is %s (%v), of %d bytes", name, c.Env[i].Value, err, limit)
			}
		}
	}
}

// TestDoctorManifest: the Job that checks nodes before an installation has the rights of the
// gateway's pod on the same nodes, no more, and leaves nothing behind.
func TestDoctorManifest(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("manifests/doctor.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var configMap corev1.ConfigMap
	var job batchv1.Job
	docs := bytes.Split(text, []byte("\n---\n"))
	if len(docs) != 2 {
		t.Fatalf("%d objects, want a ConfigMap and a Job", len(docs))
	}
	if err := errors.Join(yaml.UnmarshalStrict(docs[0], &configMap), yaml.UnmarshalStrict(docs[1], &job)); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Parse([]byte(configMap.Data["gateway.yaml"])); err != nil {
		t.Errorf("the configuration is refused: %v", err)
	}
	gateway, pod := readManifests(t).daemonSet.Spec.Template.Spec, job.Spec.Template.Spec
	want, got := gateway.Containers[0].SecurityContext, pod.Containers[0].SecurityContext
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("-gateway +doctor:\n%s", diff)
	}
	if !pod.HostNetwork || pod.HostPID || pod.ServiceAccountName != "" ||
		pod.RestartPolicy != corev1.RestartPolicyNever ||
		*job.Spec.BackoffLimit != 0 || *job.Spec.TTLSecondsAfterFinished == 0 {
		t.Errorf("the pod is %+v", pod)
	}
	if diff := gocmp.Diff(gateway.NodeSelector, pod.NodeSelector); diff != "" {
		t.Errorf("other nodes: -gateway +doctor:\n%s", diff)
	}
	if diff := gocmp.Diff(gateway.Tolerations, pod.Tolerations); diff != "" {
		t.Errorf("other nodes: -gateway +doctor:\n%s", diff)
	}
	for _, m := range pod.Containers[0].VolumeMounts {
		if !m.ReadOnly {
			t.Errorf("%s may be written", m.MountPath)
		}
	}
	for _, v := range pod.Volumes {
		if v.HostPath != nil && *v.HostPath.Type != corev1.HostPathDirectory {
			t.Errorf("the Job makes %s on the node", v.HostPath.Path)
		}
	}
	if job.Spec.Template.Labels["app.kubernetes.io/name"] == "sluice" {
		t.Error("the gateways' selector matches the Job's pods")
	}
	command := pod.Containers[0].Args
	if len(command) != 3 || command[0] != "doctor" || command[2] != "/etc/sluice/gateway.yaml" {
		t.Errorf("it runs %q", command)
	}
}

// The announcer has exactly these rights: it reads, and writes Events. It reads no Secret that the
// chart does not name. Its only capability is needed for neighbour requests.
func TestAnnouncerManifests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("manifests/announcer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rights := map[string][]string{}
	var set appsv1.DaemonSet
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		var role rbacv1.ClusterRole // a Role has the same fields
		if err := yaml.Unmarshal(doc, &role); err != nil {
			t.Fatal(err)
		}
		switch role.Kind {
		case "ClusterRole", "Role":
			if err := yaml.UnmarshalStrict(doc, &role); err != nil {
				t.Error(err)
			}
			for _, r := range role.Rules {
				name := role.Kind + " " + strings.Join(r.APIGroups, ",") + "/" + strings.Join(r.Verbs, ",")
				rights[name] = append(rights[name], r.Resources...)
			}
		case "DaemonSet":
			if err := yaml.UnmarshalStrict(doc, &set); err != nil {
				t.Error(err)
			}
		}
	}
	want := map[string][]string{
		"ClusterRole /list,watch": {"services", "nodes"},
		"ClusterRole sluice.dev/list,watch": {"addresspools", "bgppeers", "bgpadvertisements", "bfdprofiles",
			"communities", "l2advertisements"},
		"ClusterRole metallb.io/list,watch": {"ipaddresspools", "bgppeers", "bgpadvertisements", "bfdprofiles",
			"communities", "l2advertisements"},
		"ClusterRole events.k8s.io/create": {"events"},
	}
	if diff := gocmp.Diff(want, rights); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got, join := set.Spec.MinReadySeconds, layer2.DefaultJoinTime; time.Duration(got)*time.Second < 2*join {
		t.Errorf("a rollout continues %d s after an announcer has started, but joining its links takes %v", got, join)
	}
	pod := set.Spec.Template.Spec
	c := pod.Containers[0]
	if *c.SecurityContext.AllowPrivilegeEscalation || !*c.SecurityContext.ReadOnlyRootFilesystem ||
		!slices.Equal(c.SecurityContext.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
		!slices.Equal(c.SecurityContext.Capabilities.Add, []corev1.Capability{"NET_RAW"}) {
		t.Errorf("the pod may more than it must: %+v", c.SecurityContext)
	}
	if s := set.Spec.Selector.MatchLabels["app.kubernetes.io/name"]; s == "sluice" {
		t.Error("the gateways' selector matches the announcer's pods")
	}
	gateway, err := config.ParseFile("gateway.yaml", []byte(readManifests(t).configMap.Data["gateway.yaml"]))
	if err != nil {
		t.Fatal(err)
	}
	if !pod.HostNetwork || !slices.Contains(c.Args, "--gateway="+gateway.PulseSocket()) {
		t.Errorf("it does not find the gateway: %q", c.Args)
	}
	// Through the other sockets of stateDir a gateway can be changed, or taken over.
	pulse := filepath.Dir(gateway.PulseSocket())
	if diff := gocmp.Diff(map[string]string{pulse: pulse, "/run/sluice-announcer": "/run/sluice-announcer"},
		hostPaths(&pod)); diff != "" {
		t.Errorf("mounts from the host, -want +got:\n%s", diff)
	}
	for _, m := range c.VolumeMounts {
		if m.MountPath == pulse && !m.ReadOnly {
			t.Error("it may write where the gateway's socket is")
		}
	}
}

func readNode(t *testing.T) (set appsv1.DaemonSet) {
	t.Helper()
	text, err := os.ReadFile("manifests/node.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &set); err != nil {
		t.Fatal(err)
	}
	return set
}

// The pod that ends the tunnel on a node reads no objects, has one capability, and gives the tunnel
// to the next pod beside it. Its probe examines the tunnel that it makes.
func TestNodeManifests(t *testing.T) {
	t.Parallel()
	set := readNode(t)
	pod := set.Spec.Template.Spec
	c := pod.Containers[0]
	s, update := c.SecurityContext, set.Spec.UpdateStrategy.RollingUpdate
	for what, ok := range map[string]bool{
		"no account": pod.ServiceAccountName == "" && !*pod.AutomountServiceAccountToken,
		"one capability": !*s.Privileged && !*s.AllowPrivilegeEscalation && *s.ReadOnlyRootFilesystem &&
			slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) &&
			slices.Equal(s.Capabilities.Add, []corev1.Capability{"NET_ADMIN"}),
		"the host's network, without ports": pod.HostNetwork && len(c.Ports) == 0,
		"the next pod beside it":            update.MaxSurge.IntValue() == 1 && update.MaxUnavailable.IntValue() == 0,
		"labels of its own": set.Spec.Selector.MatchLabels["app.kubernetes.io/name"] == "sluice-node" &&
			containsAll(set.Spec.Template.Labels, set.Spec.Selector.MatchLabels),
		"each node": len(pod.Tolerations) == 1 &&
			pod.Tolerations[0] == corev1.Toleration{Operator: corev1.TolerationOpExists},
		"time to be taken over": *pod.TerminationGracePeriodSeconds >= 10,
	} {
		if !ok {
			t.Errorf("the pod has not: %s", what)
		}
	}
	if diff := gocmp.Diff(map[string]string{hostlink.HostProcSys + "/net": "/proc/sys/net"},
		hostPaths(&pod)); diff != "" {
		t.Errorf("mounts from the host, -want +got:\n%s", diff)
	}
	want := append([]string{"/bin/sluice", "node", "check"}, c.Args[2:]...)
	if diff := gocmp.Diff(want, c.ReadinessProbe.Exec.Command); diff != "" || !strings.HasPrefix(c.Args[2], "--vni=") {
		t.Errorf("the probe of %q, -want +got:\n%s", c.Args, diff)
	}
}

// The gateway has exactly these rights, without wildcards.
func TestRights(t *testing.T) {
	t.Parallel()
	o := readManifests(t)
	var got []string
	for _, r := range o.role.Rules {
		if len(r.ResourceNames)+len(r.NonResourceURLs) > 0 {
			t.Errorf("a rule has names or URLs: %+v", r)
		}
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					got = append(got, fmt.Sprintf("%s/%s %s", group, resource, verb))
				}
			}
		}
	}
	want := []string{
		"/nodes list", "/nodes watch", "/services get", "/services list", "/services watch",
		"discovery.k8s.io/endpointslices get", "discovery.k8s.io/endpointslices list",
		"discovery.k8s.io/endpointslices watch",
		"events.k8s.io/events create", "events.k8s.io/events patch",
	}
	slices.Sort(got)
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	s := o.binding.Subjects
	if o.binding.RoleRef.Name != o.role.Name || len(s) != 1 || s[0].Name != o.serviceAccount.Name ||
		s[0].Namespace != o.namespace.Name {
		t.Errorf("the binding is not of %s to %s: %+v", o.role.Name, o.serviceAccount.Name, o.binding)
	}
	own := []rbacv1.PolicyRule{{APIGroups: []string{"apps"}, Resources: []string{"daemonsets"},
		ResourceNames: []string{o.daemonSet.Name}, Verbs: []string{"list", "watch"}}}
	if diff := gocmp.Diff(own, o.ownRole.Rules); diff != "" || o.ownRole.Namespace != o.daemonSet.Namespace {
		t.Errorf("rights in the own namespace: -want +got:\n%s", diff)
	}
	if b := o.ownBinding; b.RoleRef.Name != o.ownRole.Name || b.Namespace != o.ownRole.Namespace ||
		!slices.Equal(b.Subjects, s) {
		t.Errorf("the binding is not of %s to %s: %+v", o.ownRole.Name, o.serviceAccount.Name, b)
	}
}

// capabilities returns the pod's capabilities in the manifests.
func capabilities(t *testing.T, o *objects) []string {
	t.Helper()
	c := o.daemonSet.Spec.Template.Spec.Containers[0].SecurityContext.Capabilities
	if c == nil || !slices.Equal(c.Drop, []corev1.Capability{"ALL"}) {
		t.Fatalf("capabilities are %+v: all must be dropped first", c)
	}
	var names []string
	for _, name := range c.Add {
		names = append(names, string(name))
	}
	return names
}

// The pod is confined, and has the mounts and settings that its configuration needs.
func TestPod(t *testing.T) {
	t.Parallel()
	o := readManifests(t)
	c, err := config.ParseFile("gateway.yaml", []byte(o.configMap.Data["gateway.yaml"]))
	if err != nil {
		t.Fatalf("the daemon would not take its configuration: %v", err)
	}
	if !c.Kubernetes.Enabled || c.Manifests.Directory != "" {
		t.Errorf("objects come from %+v and %+v; want the API server alone", c.Kubernetes, c.Manifests)
	}
	pod := o.daemonSet.Spec.Template.Spec
	container := pod.Containers[0]
	s, update := container.SecurityContext, o.daemonSet.Spec.UpdateStrategy.RollingUpdate
	for what, ok := range map[string]bool{
		"the host's network":            pod.HostNetwork && !pod.HostPID && !pod.HostIPC,
		"not privileged":                !*s.Privileged && !*s.AllowPrivilegeEscalation,
		"a root directory to read only": *s.ReadOnlyRootFilesystem,
		"the runtime's seccomp profile": pod.SecurityContext.SeccompProfile.Type ==
			corev1.SeccompProfileTypeRuntimeDefault,
		"one container":                    len(pod.Containers) == 1 && len(pod.InitContainers) == 0,
		"time to drain":                    *pod.TerminationGracePeriodSeconds > int64(c.Drain.Timeout.D().Seconds()),
		"no connection ended by a rollout": c.Drain.HandOver,
		"the next pod beside it, which takes over": update.MaxSurge.IntValue() == 1 &&
			update.MaxUnavailable.IntValue() == 0 && slices.Contains(container.Args, "--take-over"),
		"no port, which would keep the next pod off the node": len(container.Ports) == 0,

		"gateways only":       pod.NodeSelector["node-restriction.kubernetes.io/sluice-gateway"] == "true",
		"its service account": pod.ServiceAccountName == o.serviceAccount.Name,
		"the selector's labels": containsAll(o.daemonSet.Spec.Template.Labels,
			o.daemonSet.Spec.Selector.MatchLabels),
		"its node's name": container.Env[0].Name == config.NodeNameVariable &&
			container.Env[0].ValueFrom.FieldRef.FieldPath == "spec.nodeName",
		"its own UID": container.Env[1].Name == "POD_UID" &&
			container.Env[1].ValueFrom.FieldRef.FieldPath == "metadata.uid",
	} {
		if !ok {
			t.Errorf("the pod has not: %s", what)
		}
	}
	if diff := gocmp.Diff(map[string]string{
		c.StateDir: c.StateDir, c.BPFFS: c.BPFFS, hostlink.HostProcSys + "/net": "/proc/sys/net",
	}, hostPaths(&pod)); diff != "" {
		t.Errorf("mounts from the host, -want +got:\n%s", diff)
	}
	testProbes(t, &container, c)
}

func testProbes(t *testing.T, container *corev1.Container, c *config.Configuration) {
	t.Helper()
	if c.Metrics.Address != "127.0.0.1:9470" {
		t.Errorf("metrics at %s, want them for the node alone", c.Metrics.Address)
	}
	// A port may belong to another process: it must neither answer for the daemon nor keep it from
	// being ready. A daemon that waits for the API server must not be killed.
	for what, p := range map[string]*corev1.Probe{"live": container.LivenessProbe, "ready": container.ReadinessProbe} {
		if p == nil || p.Exec == nil || !slices.Equal(p.Exec.Command, []string{"/bin/sluice", "--socket",
			c.StatusSocket(), "probe", what}) {
			t.Errorf("probe %+v, want sluice probe %s at %s", p, what, c.StatusSocket())
		}
	}
	if p := container.StartupProbe; p != nil {
		t.Errorf("a startup probe kills a daemon that waits for the API server: %+v", p)
	}
}

func containsAll(have, want map[string]string) bool {
	for k, v := range want {
		if have[k] != v {
			return false
		}
	}
	return len(want) > 0
}

// hostPaths are the host's directories by mount path.
func hostPaths(pod *corev1.PodSpec) map[string]string {
	paths := map[string]string{}
	for _, m := range pod.Containers[0].VolumeMounts {
		i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if v := pod.Volumes[i]; v.HostPath != nil {
			paths[m.MountPath] = v.HostPath.Path
		}
	}
	return paths
}

// The chart's comments give a reason for each capability, in the order of the file.
func TestCapabilitiesHaveReasons(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(manifestsFile)
	if err != nil {
		t.Fatal(err)
	}
	o := readManifests(t)
	names := capabilities(t, &o)
	for _, name := range names {
		_, after, found := strings.Cut(string(text), "            - "+name)
		line, _, _ := strings.Cut(after, "\n")
		if !found || !strings.Contains(line, "# ") {
			t.Errorf("%s has no reason beside it", name)
		}
	}
	if slices.SortedFunc(slices.Values(names), cmp.Compare)[0] == "ALL" {
		t.Error("all capabilities are given")
	}
}
