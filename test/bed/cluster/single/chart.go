package single

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/cluster/nodes"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// The release that deploy/tools renders: its namespace, and its DaemonSet's name.
const (
	ReleaseNamespace = "sluice-system"
	ReleaseName      = "sluice"
)

// StatusSocket is where the daemon answers, on the gateway's node.
const StatusSocket = "/run/sluice/status.sock"

// Image builds the daemon from this tree and an image of it, as `make image` does, and gives it to
// nodes under "sluice:VERSION".
func (c *Cluster) Image(ctx context.Context, version string, to ...*nodes.Node) error {
	dir := filepath.Join(c.dir, "image")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	binary, err := launch.Build(dir, false)
	if err != nil {
		return err
	}
	file := filepath.Join(dir, version+".tar")
	if _, err := tool(ctx, "./image", "-o", file, "-version", version, runtime.GOARCH+"="+binary); err != nil {
		return err
	}
	for _, n := range to {
		if err := n.ImportFile(ctx, file); err != nil {
			return err
		}
	}
	return nil
}

// Manifests renders the chart as a release, with values, YAML, over its own.
func (c *Cluster) Manifests(ctx context.Context, values string) ([]byte, error) {
	file := filepath.Join(c.dir, "values.yaml")
	out := filepath.Join(c.dir, "manifests.yaml")
	if err := os.WriteFile(file, []byte(values), 0o644); err != nil {
		return nil, err
	}
	if _, err := tool(ctx, "./chart", "-values", file, "-manifests", out); err != nil {
		return nil, err
	}
	return os.ReadFile(out)
}

// Values are for this cluster: the gateway's interfaces, an image that Image made, and the API
// server's own address, as the gateway's node has no kube-proxy. Flow tables are small, because
// there may be several.
func (c *Cluster) Values(version string) string {
	return fmt.Sprintf(`image: {tag: %q, pullPolicy: Never}
apiServer: {host: %q, port: %d}
config:
  interfaces:
  - name: front0
  - name: back0
  flows: {ipv4: 65536, ipv6: 65536}
`, version, c.control.Addr4(), c.Port())
}

// MergeValues lays values over others, as Helm does with several files.
func MergeValues(below, above string) (string, error) {
	var a, b map[string]any
	if err := errors.Join(yaml.Unmarshal([]byte(below), &a), yaml.Unmarshal([]byte(above), &b)); err != nil {
		return "", fmt.Errorf("values: %w", err)
	}
	merge(a, b)
	text, err := yaml.Marshal(a)
	return string(text), err
}

func merge(into, from map[string]any) {
	for k, v := range from {
		deeper, both := into[k].(map[string]any)
		if m, ok := v.(map[string]any); ok && both {
			merge(deeper, m)
			continue
		}
		into[k] = v
	}
}

// tool runs a program of deploy/tools, a module of its own.
func tool(ctx context.Context, pkg string, args ...string) (string, error) {
	dir, err := cluster.ModuleDir(ctx, "deploy/tools")
	if err != nil {
		return "", err
	}
	run := exec.CommandContext(ctx, "go", append([]string{"run", pkg}, args...)...)
	run.Dir = dir
	out, err := run.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("deploy/tools: %s: %w\n%s", pkg, err, out)
	}
	return string(out), nil
}

// Installed waits until the release's DaemonSet has rolled out: all its pods are of its last
// template, and Ready.
func (c *Cluster) Installed(ctx context.Context, timeout time.Duration) error {
	return Eventually(ctx, timeout, func(ctx context.Context) error {
		d, err := c.Client().AppsV1().DaemonSets(ReleaseNamespace).Get(ctx, ReleaseName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return rolledOut(d)
	})
}

func rolledOut(d *appsv1.DaemonSet) error {
	s := &d.Status
	if s.ObservedGeneration < d.Generation || s.DesiredNumberScheduled == 0 ||
		s.UpdatedNumberScheduled < s.DesiredNumberScheduled || s.NumberReady < s.DesiredNumberScheduled {
		return fmt.Errorf("DaemonSet %s: %d pods wanted, %d of the last template, %d ready", d.Name,
			s.DesiredNumberScheduled, s.UpdatedNumberScheduled, s.NumberReady)
	}
	return nil
}

// Restart starts the release's pods anew, as `kubectl rollout restart` does.
func (c *Cluster) Restart(ctx context.Context, at time.Time) error {
	patch := fmt.Sprintf(`{"spec": {"template": {"metadata": {"annotations": {%q: %q}}}}}`,
		"kubectl.kubernetes.io/restartedAt", at.Format(time.RFC3339Nano))
	_, err := c.Client().AppsV1().DaemonSets(ReleaseNamespace).Patch(ctx, ReleaseName, types.StrategicMergePatchType,
		[]byte(patch), metav1.PatchOptions{})
	return err
}

// GatewayPod is the release's pod on the gateway's node that is not being deleted, the newer of
// two.
func (c *Cluster) GatewayPod(ctx context.Context) (*corev1.Pod, error) {
	list, err := c.Client().CoreV1().Pods(ReleaseNamespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/instance=" + ReleaseName, FieldSelector: "spec.nodeName=" + c.Gateway.Name,
	})
	if err != nil {
		return nil, err
	}
	var newest *corev1.Pod
	for i := range list.Items {
		if p := &list.Items[i]; p.DeletionTimestamp == nil &&
			(newest == nil || newest.CreationTimestamp.Before(&p.CreationTimestamp)) {
			newest = p
		}
	}
	if newest == nil {
		return nil, fmt.Errorf("no pod of %s on node %s", ReleaseName, c.Gateway.Name)
	}
	return newest, nil
}

// Daemon asks the gateway's daemon, by its socket on the node.
func (c *Cluster) Daemon() *status.Client { return status.NewClient(c.Gateway.Path(StatusSocket)) }

// SetVIPs writes status.loadBalancer of a Service, as a controller of a cloud or MetalLB would.
func (c *Cluster) SetVIPs(ctx context.Context, namespace, name string, vips ...string) error {
	services := c.Client().CoreV1().Services(namespace)
	s, err := services.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	s.Status.LoadBalancer.Ingress = nil
	for _, ip := range vips {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	_, err = services.UpdateStatus(ctx, s, metav1.UpdateOptions{})
	return err
}

// Eventually waits until a condition holds.
func Eventually(ctx context.Context, timeout time.Duration, condition func(context.Context) error) error {
	return topo.Until(ctx, timeout, 100*time.Millisecond, condition)
}
