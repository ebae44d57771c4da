package nodes

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/test/bed/cluster"
)

// Paths in a node.
const (
	socket     = "/run/containerd/containerd.sock"
	goFile     = "/run/node/go" // the kubelet starts when it is there
	pluginsDir = "/run/node/cni"
)

// PauseImage is what holds a pod's namespaces.
const PauseImage = "sluice.test/pause:1"

// sysctls are the settings that a kubelet writes (pkg/kubelet/cm/container_manager_linux.go,
// setupKernelTunables).
var sysctls = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// containerdConfig is containerd's configuration: its default paths belong to the machine.
func containerdConfig(r *cluster.Runtime) string {
	return fmt.Sprintf(`version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs", "io.containerd.internal.v1.tracing"]
[grpc]
  address = %q
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  # Where this machine is itself a container, nobody may be spared more than containerd is.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = %q
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = %q
        SystemdCgroup = false
`, socket, PauseImage, r.Plugins(), pluginsDir, r.Runc())
}

// networkConfig gives each pod a veth pair that ends in the node, and a route to it: no bridge, so
// that packets between pods of one node are routed, too.
func networkConfig(pods [2]netip.Prefix) (string, error) {
	text, err := json.MarshalIndent(map[string]any{
		"cniVersion": "0.4.0", "name": "pods",
		"plugins": []any{map[string]any{
			"type": "ptp", "ipMasq": false, "mtu": 1500,
			"ipam": map[string]any{
				"type": "host-local", "dataDir": "/run/node/addresses",
				"ranges": [][]map[string]string{{{"subnet": pods[0].String()}}, {{"subnet": pods[1].String()}}},
				"routes": []map[string]string{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
			},
		}},
	}, "", "  ")
	return string(text), err
}

// kubeletConfig is a kubelet's, with defaults but for what one machine forces: control groups of
// version 1, disks that are memory and shared with everybody, and paths. Pods resolve names at dns;
// there is no DNS if that is no address.
func kubeletConfig(authority string, dns netip.Addr) (string, error) {
	none := map[string]string{"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
		"imagefs.available": "0%", "imagefs.inodesFree": "0%"}
	var servers []string
	if dns.IsValid() {
		servers = append(servers, dns.String())
	}
	text, err := yaml.Marshal(map[string]any{
		"clusterDNS": servers, "clusterDomain": "cluster.local",
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"containerRuntimeEndpoint": "unix://" + socket,
		"cgroupDriver":             "cgroupfs",
		"failCgroupV1":             false,
		"authentication": map[string]any{"anonymous": map[string]any{"enabled": false},
			"webhook": map[string]any{"enabled": true}, "x509": map[string]any{"clientCAFile": authority}},
		"authorization":               map[string]any{"mode": "Webhook"},
		"resolvConf":                  "/run/node/resolv.conf",
		"volumePluginDir":             "/var/lib/kubelet/volumeplugins",
		"evictionHard":                none,
		"imageGCHighThresholdPercent": 100,
		"failSwapOn":                  false,
		"registerNode":                true,
	})
	return string(text), err
}

// resolvConf names no server: there is none.
const resolvConf = "search .\n"

func (n *Node) logPath(program string) string { return filepath.Join(n.dir, program+".log") }
