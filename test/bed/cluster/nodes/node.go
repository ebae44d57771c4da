package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/cluster/nodes/spec"
	"sluice.dev/sluice/test/bed/scratch"
	"sluice.dev/sluice/test/bed/topo"
)

// Config describes the node to run.
type Config struct {
	Cluster *cluster.Cluster
	Runtime *cluster.Runtime
	// First is the path of the program of nodes/first, built.
	First string
	// Kubelet is the path of the kubelet.
	Kubelet string
	// Name of the node.
	Name string
	// Host in whose network the node is. The node's addresses are the addresses of the host's last
	// interface.
	Host *topo.Host
	// Server is the API server's URL there.
	Server string
	// Pods are the ranges of its pods' addresses, IPv4 and IPv6.
	Pods [2]netip.Prefix
	// Labels that an administrator gives it, as a kubelet cannot give itself every one (admission
	// plugin NodeRestriction), and Taints that it registers with.
	Labels map[string]string
	Taints []corev1.Taint
	// Images that it has from the start.
	Images []*Image
	// DNS is the resolver of the pods; they have none, if it is the zero value.
	DNS netip.Addr
}

// Node is a node that runs. It belongs to one goroutine.
type Node struct {
	Name string

	config  Config
	dir     string // of its files on the machine
	group   string
	process *topo.Process
	pid     int // of its process 1, as the machine counts
}

// groupPrefix begins the names of nodes' control groups; the number of the owner follows
// (test/bed/scratch).
const groupPrefix = "sluice-node-"

// How long a node may take.
const (
	runtimeTimeout  = 120 * time.Second
	registerTimeout = 300 * time.Second
	stopTimeout     = 10 * time.Second
	tmpfsBytes      = 8 << 30
)

// Start starts a node and returns when it is registered and Ready. After an error it ends the
// processes that it started.
func Start(ctx context.Context, c Config) (*Node, error) {
	if err := sweepGroups(); err != nil {
		return nil, err
	}
	n := &Node{Name: c.Name, config: c}
	if err := n.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("node %s: %w", n.Name, err), n.Stop())
	}
	return n, nil
}

func (n *Node) start(ctx context.Context) (err error) {
	if n.dir, err = scratch.Make(scratch.Tmpfs(), groupPrefix); err != nil {
		return err
	}
	n.group = filepath.Base(n.dir) // as unique as that
	s, err := n.spec()
	if err != nil {
		return err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	file := filepath.Join(n.dir, "node.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	log, err := os.Create(n.logPath("first"))
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own
	n.process, err = n.config.Host.Start(topo.Command{Path: n.config.First, Args: []string{file}, Stdout: log,
		Stderr: log})
	if err != nil {
		return err
	}
	if err := n.wait(ctx, runtimeTimeout, n.hasRuntime); err != nil {
		return fmt.Errorf("containerd does not answer: %w\n%s", err, n.Log("containerd"))
	}
	if err := n.Import(ctx, n.config.Images...); err != nil {
		return err
	}
	if err := os.WriteFile(n.Path(goFile), nil, 0o644); err != nil {
		return err
	}
	if err := n.wait(ctx, registerTimeout, n.isReady); err != nil {
		return fmt.Errorf("not Ready: %w\n%s", err, n.Log("kubelet"))
	}
	return n.label(ctx)
}

func (n *Node) label(ctx context.Context) error {
	if len(n.config.Labels) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": n.config.Labels}})
	if err != nil {
		return err
	}
	_, err = n.config.Cluster.Client().CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch,
		metav1.PatchOptions{})
	return err
}

func (n *Node) spec() (*spec.Node, error) {
	network, err := networkConfig(n.config.Pods)
	if err != nil {
		return nil, err
	}
	kubelet, err := kubeletConfig("/run/node/ca.crt", n.config.DNS)
	if err != nil {
		return nil, err
	}
	user, err := n.config.Cluster.CertificateUser("system:node:"+n.Name, "system:nodes")
	if err != nil {
		return nil, err
	}
	kubeconfig, err := n.config.Cluster.Kubeconfig(user, n.config.Server)
	if err != nil {
		return nil, err
	}
	return &spec.Node{
		Name: n.Name, Group: n.group, PIDFile: filepath.Join(n.dir, "pid"),
		Tmpfs: []string{"/run", "/var/lib", "/var/log"}, SizeBytes: tmpfsBytes,
		Sysctls: sysctls,
		Files: map[string]string{
			"/run/node/containerd.toml":      containerdConfig(n.config.Runtime),
			"/run/node/kubelet.yaml":         kubelet,
			"/run/node/ca.crt":               string(n.config.Cluster.RESTConfig(user).CAData),
			"/run/node/resolv.conf":          resolvConf,
			pluginsDir + "/10-pods.conflist": network,
		},
		Env: append(n.config.Runtime.Env(), "HOME=/root", "LANG=C.UTF-8"),
		Programs: []spec.Program{
			{Path: n.config.Runtime.Containerd(), Args: []string{"--config", "/run/node/containerd.toml"},
				Log: n.logPath("containerd")},
			{Path: n.config.Kubelet, Args: n.kubeletFlags(kubeconfig), Log: n.logPath("kubelet"), When: goFile},
		},
	}, nil
}

func (n *Node) kubeletFlags(kubeconfig string) []string {
	last := n.config.Host.Interfaces[len(n.config.Host.Interfaces)-1]
	flags := []string{
		"--kubeconfig=" + kubeconfig, "--config=/run/node/kubelet.yaml", "--root-dir=/var/lib/kubelet",
		"--cert-dir=/var/lib/kubelet/pki", "--hostname-override=" + n.Name,
		"--node-ip=" + last.Addr4.Addr().String() + "," + last.Addr6.Addr().String(), "--v=2",
	}
	var taints []string
	for i := range n.config.Taints {
		taints = append(taints, n.config.Taints[i].ToString())
	}
	if len(taints) > 0 {
		flags = append(flags, "--register-with-taints="+strings.Join(taints, ","))
	}
	return flags
}

// wait asks until there is no error. A node that has ended never gets there.
func (n *Node) wait(ctx context.Context, timeout time.Duration, ready func(context.Context) error) error {
	return topo.Until(ctx, timeout, 50*time.Millisecond, func(ctx context.Context) error {
		err := ready(ctx)
		select {
		case <-n.process.Done():
			return topo.Final(fmt.Errorf("the node has ended: %w\n%s", n.process.Err(), n.Log("first")))
		default:
			return err
		}
	})
}

// hasRuntime reports whether containerd answers.
func (n *Node) hasRuntime(ctx context.Context) error {
	if n.pid == 0 {
		text, err := os.ReadFile(filepath.Join(n.dir, "pid"))
		if err != nil {
			return err
		}
		if n.pid, err = strconv.Atoi(string(text)); err != nil {
			return err
		}
	}
	if _, err := os.Stat(n.Path(socket)); err != nil {
		return err
	}
	return n.ctr(ctx, "version")
}

// isReady gives the Node its pods' ranges, once it is registered, and reports whether it is Ready.
func (n *Node) isReady(ctx context.Context) error {
	nodes := n.config.Cluster.Client().CoreV1().Nodes()
	o, err := nodes.Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if o.Spec.PodCIDR == "" {
		patch := fmt.Sprintf(`{"spec":{"podCIDR":%q,"podCIDRs":[%q,%q]}}`, n.config.Pods[0], n.config.Pods[0],
			n.config.Pods[1])
		if _, err := nodes.Patch(ctx, n.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.NodeReady {
			if c.Status == corev1.ConditionTrue {
				return nil
			}
			return fmt.Errorf("%s: %s", c.Reason, c.Message)
		}
	}
	return errors.New("the kubelet has said nothing yet")
}

// Path is how a file of the node is reached from the machine.
func (n *Node) Path(inNode string) string {
	return filepath.Join("/proc", strconv.Itoa(n.pid), "root", inNode)
}

// ctr runs containerd's client.
func (n *Node) ctr(ctx context.Context, args ...string) error {
	c := exec.CommandContext(ctx, n.config.Runtime.Ctr(),
		append([]string{"--address", n.Path(socket), "--namespace", "k8s.io"}, args...)...)
	c.Env = append(os.Environ(), n.config.Runtime.Env()...)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("ctr %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// Import gives the node images.
func (n *Node) Import(ctx context.Context, images ...*Image) error {
	for _, i := range images {
		if err := n.importOne(ctx, i); err != nil {
			return fmt.Errorf("import %s: %w", strings.Join(i.Names, ", "), err)
		}
	}
	return nil
}

func (n *Node) importOne(ctx context.Context, i *Image) error {
	f, err := os.CreateTemp(n.dir, "image-*.tar")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := errors.Join(i.Archive(f), f.Close()); err != nil {
		return err
	}
	return n.ImportFile(ctx, f.Name())
}

// ImportFile gives the node the images of an archive, under the names that are in it.
func (n *Node) ImportFile(ctx context.Context, path string) error {
	return n.ctr(ctx, "images", "import", path)
}

// Command is a command in the node, as somebody who is logged in to it would give it.
func (n *Node) Command(ctx context.Context, path string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(n.pid),
		"--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--", path}, args...)...)
}

// Shell runs a script in the node and returns its output.
func (n *Node) Shell(ctx context.Context, script string) (string, error) {
	out, err := n.Command(ctx, "/bin/sh", "-ec", script).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("on node %s: %s: %w\n%s", n.Name, script, err, out)
	}
	return strings.TrimSpace(string(out)), err
}

// Log returns the end of the log of a program of the node ("kubelet", "containerd", "first").
func (n *Node) Log(program string) string {
	const most = 8 << 10
	f, err := os.Open(n.logPath(program))
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if end, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, end-most), io.SeekStart)
	}
	text, _ := io.ReadAll(f)
	return string(text)
}

// PID is the number of the node's process 1, as the machine counts.
func (n *Node) PID() int { return n.pid }

// Host is the host whose network the node is in.
func (n *Node) Host() *topo.Host { return n.config.Host }

// Stop ends the node and everything in it, and removes its control groups and files. It may be
// called twice.
func (n *Node) Stop() error {
	if n.process != nil {
		if err := n.process.Stop(stopTimeout); err != nil {
			return err
		}
		n.process = nil
	}
	if n.dir == "" {
		return nil
	}
	err := errors.Join(removeGroups(n.group), os.RemoveAll(n.dir))
	n.dir = ""
	return err
}
