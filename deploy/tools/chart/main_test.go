package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
)

const chartDir = "../../chart"

// The chart has no errors and no warnings, and the committed manifests are rendered from it.
func TestChart(t *testing.T) {
	out := outputs{"../../manifests/sluice.yaml", "../../../docs/alerts.md", chartDir + "/files/dashboards"}
	if err := run(chartDir, out, "", true); err != nil {
		t.Error(err)
	}
}

// A manifest or a dashboard edited by hand is detected, and a dashboard that is no longer in the
// list.
func TestCheckFindsAnEdit(t *testing.T) {
	dir := t.TempDir()
	out := outputs{filepath.Join(dir, "sluice.yaml"), filepath.Join(dir, "alerts.md"), filepath.Join(dir, "dashboards")}
	render := func(check bool) error { return run(chartDir, out, "", check) }
	if err := errors.Join(os.Mkdir(out.dashboards, 0o755), render(false), render(true)); err != nil {
		t.Fatal(err)
	}
	for file, change := range map[string][2]string{
		out.manifests: {"NET_RAW", "SYS_ADMIN"},
		filepath.Join(out.dashboards, "gateway.json"): {"sluice_ready", "sluice_reedy"},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		edited := strings.Replace(string(text), change[0], change[1], 1)
		if err := os.WriteFile(file, []byte(edited), 0o600); err != nil {
			t.Fatal(err)
		}
		err = render(true)
		if err == nil || !strings.Contains(err.Error(), "make -C deploy chart") {
			t.Errorf("%s: %v, want a word about make -C deploy chart", file, err)
		}
		if err := render(false); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(out.dashboards, "old.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := render(true); err == nil || !strings.Contains(err.Error(), "4 files") {
		t.Errorf("%v, want an error about the fourth file", err)
	}
}

// A file with values renders a release with these values.
func TestValuesFile(t *testing.T) {
	dir := t.TempDir()
	values, out := filepath.Join(dir, "values.yaml"), filepath.Join(dir, "sluice.yaml")
	if err := os.WriteFile(values, []byte("image: {tag: mine}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(chartDir, outputs{manifests: out}, values, false); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(out); err != nil || !strings.Contains(string(text), "image: sluice:mine\n") {
		t.Errorf("%v, the image is not sluice:mine:\n%s", err, text)
	}
}

// The effects of values, and combinations that are rejected.
func TestValues(t *testing.T) {
	type values = map[string]any
	for _, tt := range []struct {
		name           string
		values         values
		want, wantNot  string
		refusedBecause string
	}{
		{name: "the API server's own address", values: values{"apiServer": values{"host": "192.0.2.1"}},
			want: "- name: KUBERNETES_SERVICE_HOST\n          value: \"192.0.2.1\"\n        - name: " +
				"KUBERNETES_SERVICE_PORT\n          value: \"6443\""},
		{name: "no address of the API server", wantNot: "KUBERNETES_SERVICE_HOST"},
		{name: "a misspelt field of the configuration", values: values{"config": values{"workrs": 2}},
			refusedBecause: "additional properties 'workrs' not allowed"},
		{name: "an impossible value in the configuration",
			values:         values{"config": values{"log": values{"level": "loud"}}},
			refusedBecause: "/config/log/level"},
		{name: "no controller", wantNot: "sluice-controller"},
		{name: "no kind of pools", wantNot: "CustomResourceDefinition"},
		{name: "a controller", values: values{"controller": values{"enabled": true, "replicas": 3}},
			want: "kind: Deployment\nmetadata:\n  name: sluice-controller"},
		{name: "a controller beside another one",
			values: values{"controller": values{"enabled": true, "default": false}},
			want:   "- --default-class=false"},
		{name: "no pools of MetalLB", values: values{"controller": values{"enabled": true, "metallbPools": false}},
			want: "- --metallb-pools=false", wantNot: "metallb.io"},
		{name: "MetalLB's namespace", values: values{"controller": values{"enabled": true},
			"metallb": values{"namespace": "lb"}}, want: "- --metallb-namespace=lb\n", wantNot: "namespace: lb\n"},
		{name: "MetalLB's namespace, for an announcer", values: values{"announcer": values{"enabled": true},
			"metallb": values{"namespace": "lb"}}, want: "- --metallb-namespace=lb\n", wantNot: "namespace: lb\n"},
		{name: "MetalLB's namespace, which is none", values: values{"metallb": values{"namespace": ""}},
			refusedBecause: "namespace"},
		{name: "rights in no namespace but MetalLB's", values: values{"controller": values{"enabled": true},
			"metallb": values{"role": true}},
			want:    "kind: Role\nmetadata:\n  name: sluice-controller-metallb\n  namespace: metallb-system\n",
			wantNot: "- apiGroups: [metallb.io]\n  resources: [ipaddresspools]\n  verbs: [list, watch]\n- "},
		{name: "rights in no namespace but MetalLB's, for an announcer", values: values{
			"announcer": values{"enabled": true}, "metallb": values{"role": true}},
			want: "kind: Role\nmetadata:\n  name: sluice-announcer-metallb\n  namespace: metallb-system\n",
			wantNot: "- apiGroups: [metallb.io]\n  resources: [ipaddresspools, bgppeers, bgpadvertisements, " +
				"bfdprofiles, communities, l2advertisements]\n  verbs: [list, watch]\n- "},
		{name: "no rights to MetalLB's objects, which are not read", values: values{"metallb": values{"role": true},
			"controller": values{"enabled": true, "metallbPools": false}}, wantNot: "metallb.io"},
		{name: "no announcer", wantNot: "sluice-announcer"},
		{name: "an announcer", values: values{"announcer": values{"enabled": true, "hold": "0s"}},
			want: "- --hold=0s"},
		{name: "announcers one after another", values: values{"announcer": values{"enabled": true}},
			want: "minReadySeconds: 5\n"},
		{name: "announcers that join for longer", values: values{"announcer": values{"enabled": true,
			"layer2": values{"join": "4s1500ms"}}}, want: "minReadySeconds: 9\n"},
		{name: "an announcer's gateway", values: values{"announcer": values{"enabled": true},
			"config": values{"stateDir": "/run/gate"}}, want: "- --gateway=/run/gate/pulse/pulse.sock"},
		{name: "an announcer with a hold that is none", values: values{"announcer": values{"enabled": true,
			"hold": "long"}}, refusedBecause: "hold"},
		{name: "an announcer without passwords", values: values{"announcer": values{"enabled": true}},
			wantNot: "secrets]"},
		{name: "an announcer with passwords", values: values{"announcer": values{"enabled": true,
			"passwordSecrets": []any{"tor", "spine"}}},
			want: "  resources: [secrets]\n  resourceNames:\n  - tor\n  - spine\n  verbs: [list, watch]\n"},
		{name: "an announcer with the names of password Secrets", values: values{"announcer": values{"enabled": true,
			"passwordSecrets": []any{"tor", "spine"}}}, want: "- --password-secrets=tor,spine\n"},
		{name: "a larger flow table", values: values{"config": values{"flows": values{"ipv4": 8388608}}},
			want: "limits:\n            memory: 3180Mi\n"},
		{name: "a memory limit of one's own", values: values{"resources": values{"limits": values{"memory": "3Gi"}}},
			want: "memory: 3Gi\n", wantNot: "GOMEMLIMIT"},
		{name: "an announcer's memory limit of one's own", values: values{"announcer": values{"enabled": true,
			"resources": values{"limits": values{"memory": "1Gi"}}}},
			want: "- {name: GOMEMLIMIT, value: 819MiB}\n"},
		{name: "no objects of MetalLB", values: values{"announcer": values{"enabled": true, "metallbObjects": false}},
			want: "- --metallb-objects=false", wantNot: "metallb.io"},
		{name: "a class that is none", values: values{"controller": values{"enabled": true, "class": "sluice"}},
			refusedBecause: "class"},
		{name: "metrics on one address",
			values: values{"config": values{"metrics": values{"address": "192.0.2.1:9999"}}},
			want:   "      address: 192.0.2.1:9999\n", wantNot: "hostPort"},
		{name: "metrics for all, and no port that keeps a second pod off the node",
			values: values{"config": values{"metrics": values{"address": ":9470"}}}, wantNot: "containerPort"},
		{name: "metrics for a PodMonitor", values: values{"podMonitor": values{"enabled": true}},
			want: "    metrics:\n      address: :9470\n"},
		{name: "a port for a PodMonitor", values: values{"podMonitor": values{"enabled": true}},
			want: "      replacement: $1:9470\n", wantNot: "containerPort"},
		{name: "metrics on one address for a PodMonitor", values: values{"podMonitor": values{"enabled": true},
			"config": values{"metrics": values{"address": "192.0.2.1:9999"}}}, want: "      address: 192.0.2.1:9999\n"},
		{name: "metrics for the node alone and a PodMonitor", values: values{"podMonitor": values{"enabled": true},
			"config": values{"metrics": values{"address": "[::1]:9470"}}}, refusedBecause: "a loopback address"},
		{name: "a PodMonitor asks by TLS", values: values{"podMonitor": values{"enabled": true},
			"config": values{"metrics": values{"tls": values{"certFile": "/tls/tls.crt", "keyFile": "/tls/tls.key"}}}},
			want: "    scheme: https\n"},
		{name: "a PodMonitor sends a token", values: values{"podMonitor": values{"enabled": true,
			"authorization": values{"credentials": values{"name": "scrape", "key": "token"}}}},
			want: "    authorization:\n      credentials:\n        key: token\n        name: scrape\n"},
		{name: "volumes of one's own", values: values{
			"extraVolumes": []any{values{"name": "tls", "secret": values{"secretName": "gw"}}}},
			want: "      - name: tls\n        secret:\n          secretName: gw\n"},
		{name: "mounts of one's own", values: values{
			"extraVolumeMounts": []any{values{"name": "tls", "mountPath": "/tls"}}},
			want: "        - mountPath: /tls\n          name: tls\n"},
		{name: "no metrics", values: values{"config": values{"metrics": values{"address": ""}}},
			wantNot: "name: metrics"},
		{name: "probes without metrics", values: values{"config": values{"metrics": values{"address": ""}}},
			want: `exec: {command: ["/bin/sluice","--socket","/run/sluice/status.sock","probe","ready"]}`},
		{name: "probes need no port", wantNot: "httpGet"},
		{name: "no metrics for a PodMonitor", values: values{"podMonitor": values{"enabled": true},
			"config": values{"metrics": values{"address": ""}}},
			refusedBecause: "Prometheus cannot scrape it"},
		{name: "a value that is not known", values: values{"imagePullSecret": "x"},
			refusedBecause: "'imagePullSecret' not allowed"},
		{name: "one below a known one", values: values{"image": values{"name": "x"}},
			refusedBecause: "'name' not allowed"},
		{name: "a value of another type", values: values{"image": "sluice:v1"}, refusedBecause: "want object"},
		{name: "PodMonitor", values: values{"podMonitor": values{"enabled": true, "labels": values{"team": "net"}}},
			want: "kind: PodMonitor"},
		{name: "a Service's namespace stays beside a pod's", values: values{"podMonitor": values{"enabled": true}},
			want: "honorLabels: true"},
		{name: "no PodMonitor", wantNot: "PodMonitor"},
		{name: "no tunnel on nodes", wantNot: "sluice-node"},
		{name: "a tunnel on nodes",
			values: tunnel(20942, "10.0.1.2", "10.0.2.0/28", "2001:db8::1/128", "::ffff:10.0.0.1"),
			want: "        args:\n        - node\n        - run\n        - --vni=20942\n        - --port=4789\n" +
				"        - --gateway=10.0.1.2\n        - --gateway=10.0.2.0/28\n        - --gateway=2001:db8::1/128\n" +
				"        - --gateway=::ffff:10.0.0.1\n        env:\n"},
		{name: "the probe of a tunnel on nodes", values: values{"nodeTunnel": values{"gateways": []any{"10.0.1.2"}},
			"config": values{"directReturn": values{"vni": 1<<24 - 1, "port": 8472}}},
			want: "- --vni=16777215\n            - --port=8472\n            - --gateway=10.0.1.2\n"},
		{name: "a tunnel on nodes alone", values: tunnel(0, "10.0.1.2"),
			refusedBecause: "config.directReturn.vni is 0: set it to a number from 1 to 16777215"},
		{name: "a VNI that is none", values: tunnel(1<<24, "10.0.1.2"),
			refusedBecause: "/config/directReturn/vni"},
		{name: "a gateway by its name", values: tunnel(7, "10.0.1.2", "gateway-1"),
			refusedBecause: `nodeTunnel.gateways: "gateway-1" is neither an address nor a prefix: give`},
		{name: "a gateway's octet", values: tunnel(7, "10.0.1.256"), refusedBecause: `"10.0.1.256" is neither`},
		{name: "a gateway's prefix length", values: tunnel(7, "10.0.1.0/33"), refusedBecause: `"10.0.1.0/33" is neither`},
		{name: "a gateway's IPv6 prefix length", values: tunnel(7, "2001:db8::/129"),
			refusedBecause: `"2001:db8::/129" is neither`},
		{name: "gateways in one string", values: values{"nodeTunnel": values{"gateways": "10.0.1.2"}},
			refusedBecause: "at '/nodeTunnel/gateways': got string, want array"},
		{name: "a gateway that is a number", values: values{"nodeTunnel": values{"gateways": []any{10.1}}},
			refusedBecause: "at '/nodeTunnel/gateways/0': got number, want string"},
		{name: "a switch that the tunnel has not", values: values{"nodeTunnel": values{"enabled": true}},
			refusedBecause: "'enabled' not allowed"},
		{name: "no events", values: values{"config": values{"kubernetes": values{"events": false}}},
			wantNot: "events.k8s.io"},
		{name: "events", want: "events.k8s.io"},
		{name: "no get without events", values: values{"config": values{"kubernetes": values{"events": false}}},
			wantNot: "watch, get"},
		{name: "a digest", values: values{"image": values{"digest": "sha256:ab", "tag": "v9"}},
			want: "image: sluice@sha256:ab\n"},
		{name: "a tag", values: values{"image": values{"tag": "v9"}}, want: "image: sluice:v9\n"},
		{name: "other directories", values: values{"config": values{"stateDir": "/run/gw"}},
			want: "hostPath: {path: /run/gw, type: DirectoryOrCreate}"},
		{name: "the socket is in the state directory", values: values{"config": values{"stateDir": "/run/gw/"}},
			want: `"--socket","/run/gw/status.sock","probe","live"`},
		{name: "a state directory that cannot be mounted", values: values{"config": values{"stateDir": "/run/"}},
			refusedBecause: "stateDir is /run:"},
		{name: "a relative state directory", values: values{"config": values{"stateDir": "run/s"}},
			refusedBecause: "/config/stateDir"},
		{name: "no socket for readers", wantNot: "sluice-readers"},
		{name: "a socket for readers", values: values{"config": values{"readers": values{"group": "4711"}}},
			want: "hostPath: {path: /run/sluice-readers, type: DirectoryOrCreate}"},
		{name: "the group of readers", values: values{"config": values{"readers": values{"group": "4711"}}},
			want: "supplementalGroups: [4711]"},
		{name: "a socket for readers elsewhere", values: values{"config": values{"readers": values{"group": "4711",
			"socket": "/run/look/s"}}}, want: "{name: readers, mountPath: /run/look}"},
		{name: "the name of a group", values: values{"config": values{"readers": values{"group": "ops"}}},
			refusedBecause: "readers.group is ops: write the number"},
		{name: "sysctls where the daemon looks for them", want: "mountPath: /host/proc/sys/net}"},
		{name: "no service account of the chart", values: values{"serviceAccount": values{"create": false}},
			want: "serviceAccountName: default\n"},
		{name: "rights of the default service account", values: values{"serviceAccount": values{"create": false}},
			want: "- kind: ServiceAccount\n  name: default\n"},
		{name: "an existing service account",
			values: values{"serviceAccount": values{"create": false, "name": "gw"}}, want: "serviceAccountName: gw\n"},
		{name: "a service account of its own", want: "serviceAccountName: sluice\n"},
		{name: "a priority class of its own", values: values{"priorityClass": values{"create": true, "name": "gw"}},
			want: "kind: PriorityClass"},
		{name: "restart on change", values: values{"restartOnConfigChange": true}, want: "checksum/config: "},
		{name: "kubernetes.enabled is false", values: values{"config": values{"kubernetes": values{"enabled": false}}},
			want: "      enabled: false\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Manifests(chartDir, tt.values)
			if tt.refusedBecause != "" {
				if err == nil || !strings.Contains(err.Error(), tt.refusedBecause) {
					t.Fatalf("%v, want %s", err, tt.refusedBecause)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(got), tt.want) {
				t.Errorf("not there: %s\n%s", tt.want, got)
			}
			if tt.wantNot != "" && strings.Contains(string(got), tt.wantNot) {
				t.Errorf("there: %s\n%s", tt.wantNot, got)
			}
		})
	}
}

// tunnel are values with the nodes' ends of a tunnel.
func tunnel(vni int, gateways ...any) map[string]any {
	return map[string]any{"nodeTunnel": map[string]any{"gateways": gateways},
		"config": map[string]any{"directReturn": map[string]any{"vni": vni}}}
}

// cluster is a cluster in which the function lookup finds objects.
type cluster struct{ objects []runtime.Object }

// GetClientFor implements engine.ClientProvider.
func (c cluster) GetClientFor(_, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	kinds := map[string]schema.GroupVersionResource{
		"Namespace": {Version: "v1", Resource: "namespaces"}, "Secret": {Version: "v1", Resource: "secrets"},
		"BGPPeer": {Group: "sluice.dev", Version: "v1alpha1", Resource: "bgppeers"},
	}
	lists := map[schema.GroupVersionResource]string{}
	for kind, resource := range kinds {
		lists[resource] = kind + "List"
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, c.objects...)
	return client.Resource(kinds[kind]), kind == "Secret", nil
}

func object(kind, namespace, name string, data map[string]any) runtime.Object {
	meta := map[string]any{"name": name}
	if namespace != "" {
		meta["namespace"] = namespace
	}
	o := map[string]any{"apiVersion": "v1", "kind": kind, "metadata": meta}
	if data != nil {
		o["data"] = data
	}
	return &unstructured.Unstructured{Object: o}
}

// TestPasswordSecrets: the chart is rejected if an existing BGPPeer has its password in a Secret
// that the announcer would have no right to read: its session would end on all gateways.
func TestPasswordSecrets(t *testing.T) {
	type values = map[string]any
	peer := func(secret values) runtime.Object {
		return &unstructured.Unstructured{Object: values{"apiVersion": "sluice.dev/v1alpha1", "kind": "BGPPeer",
			"metadata": values{"name": "leaf"}, "spec": values{"passwordSecret": secret}}}
	}
	c, err := loader.LoadDir(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	const refusal = "BGPPeer leaf has its password in the Secret md5"
	for _, tt := range []struct {
		name    string
		peer    runtime.Object // nil: no peer
		kinds   []string
		named   []any
		refused bool
	}{
		{"none", nil, nil, nil, false},
		{"the kind is not there", nil, []string{"v1/Secret"}, nil, false},
		{"named", peer(values{"name": "md5"}), nil, []any{"other", "md5"}, false},
		{"not named", peer(values{"name": "md5"}), nil, []any{"other"}, true},
		{"not named, with its namespace", peer(values{"name": "md5", "namespace": namespace}), nil, nil, true},
		{"of another namespace, which is not read", peer(values{"name": "md5", "namespace": "other"}), nil, nil, false},
		{"no Secret", peer(nil), nil, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := cluster{}
			if tt.peer != nil {
				in.objects = append(in.objects, tt.peer)
			}
			kinds := tt.kinds
			if kinds == nil {
				kinds = []string{"sluice.dev/v1alpha1/BGPPeer"}
			}
			announcer := values{"enabled": true, "passwordSecrets": tt.named}
			_, err := renderIn(in, c, values{"announcer": announcer}, kubernetes, kinds...)
			if refused := err != nil && strings.Contains(err.Error(), refusal); refused != tt.refused ||
				err != nil && !tt.refused {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestSeed: the chart makes the Secret with the seed once; an upgrade keeps it. Without a cluster
// it makes none, because each rendering would have a different one, or all the same one.
func TestSeed(t *testing.T) {
	type values = map[string]any
	system := object("Namespace", "", "kube-system", nil)
	seed := regexp.MustCompile(`(?m)^  seed: (\S+)$`)
	const mount, setting = "mountPath: /etc/sluice-maglev, readOnly", "seedFile: /etc/sluice-maglev/seed"
	for _, tt := range []struct {
		name    string
		cluster []runtime.Object // nil: no cluster
		values  values
		seed    string // "new": different in each rendering
		secret  string // mounted Secret
	}{
		{"without a cluster", nil, nil, "", "sluice-maglev"},
		{"a first installation", []runtime.Object{system}, nil, "new", "sluice-maglev"},
		{"an upgrade", []runtime.Object{system, object("Secret", namespace, "sluice-maglev",
			values{"seed": "b2xk"})}, nil, "b2xk", "sluice-maglev"},
		{"an upgrade of a Secret that has lost its seed", []runtime.Object{system, object("Secret", namespace,
			"sluice-maglev", values{"other": "b2xk"})}, nil, "new", "sluice-maglev"},
		{"another release's Secret", []runtime.Object{system, object("Secret", "other", "sluice-maglev",
			values{"seed": "b2xk"})}, nil, "new", "sluice-maglev"},
		{"a Secret of one's own", []runtime.Object{system}, values{"seedSecret": "mine"}, "", "mine"},
		{"a file of one's own", []runtime.Object{system}, values{"config": values{
			"maglev": values{"seedFile": "/seed"}}}, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := loader.LoadDir(chartDir)
			if err != nil {
				t.Fatal(err)
			}
			var found [2]string
			var files map[string]string
			for i := range found {
				var in engine.ClientProvider
				if tt.cluster != nil {
					in = cluster{tt.cluster}
				}
				if files, err = renderIn(in, c, tt.values, kubernetes); err != nil {
					t.Fatal(err)
				}
				if m := seed.FindStringSubmatch(files["sluice/templates/seed.yaml"]); m != nil {
					found[i] = m[1]
				}
			}
			if tt.seed == "new" {
				text, err := base64.StdEncoding.DecodeString(found[0])
				if len(text) < 32 || err != nil || found[0] == found[1] {
					t.Errorf("seeds %q, want two of 32 characters or more", found)
				}
			} else if found != [2]string{tt.seed, tt.seed} {
				t.Errorf("seeds %q, want %q", found, tt.seed)
			}
			pod, config := files["sluice/templates/daemonset.yaml"], files["sluice/templates/configmap.yaml"]
			mounted := tt.secret != ""
			if strings.Contains(pod, mount) != mounted || strings.Contains(config, setting) != mounted ||
				mounted && !strings.Contains(pod, "secret: {secretName: "+tt.secret+", ") {
				t.Errorf("want Secret %q to be mounted and named:\n%s\n%s", tt.secret, pod, config)
			}
		})
	}
}

// gateways are the values of a group, with others.
func gateways(group, config map[string]any) map[string]any {
	type values = map[string]any
	in := values{"members": []any{
		values{"name": "gw-a", "address": "192.0.2.1:9473", "sources": []any{"198.51.100.1", "198.51.100.2"}},
		values{"name": "gw-b", "address": "192.0.2.2:9473", "sources": []any{"198.51.100.3", "198.51.100.4"}},
	}}
	maps.Copy(in, config)
	v := values{"config": values{"group": in}}
	if group != nil {
		v["group"] = group
	}
	return v
}

// TestGroup: the list of gateways switches on the group. The chart makes its authority once, as the
// seed, or has cert-manager make it, or mounts one that exists.
func TestGroup(t *testing.T) {
	type values = map[string]any
	system := object("Namespace", "", "kube-system", nil)
	kept := values{"tls.crt": "Yw==", "tls.key": "aw==", "ca.crt": "YQ=="}
	const mount, setting = "mountPath: /etc/sluice-group, readOnly", "certFile: /etc/sluice-group/tls.crt"
	const disk = "hostPath: {path: /var/lib/sluice, type: DirectoryOrCreate}"
	for _, tt := range []struct {
		name    string
		cluster []runtime.Object // nil: no cluster
		values  values
		made    string // in group.yaml; "new": an authority that differs in each rendering
		secret  string // mounted Secret
		refused string
	}{
		{name: "no group", cluster: []runtime.Object{system}},
		{name: "without a cluster", values: gateways(nil, nil), secret: "sluice-group"},
		{name: "a first installation", cluster: []runtime.Object{system}, values: gateways(nil, nil), made: "new",
			secret: "sluice-group"},
		{name: "an upgrade", cluster: []runtime.Object{system, object("Secret", namespace, "sluice-group", kept)},
			values: gateways(nil, nil), secret: "sluice-group",
			made: "  ca.crt: YQ==\n  tls.crt: Yw==\n  tls.key: aw==\n"},
		{name: "an upgrade of a Secret that has lost its key", cluster: []runtime.Object{system,
			object("Secret", namespace, "sluice-group", values{"tls.crt": "Yw==", "ca.crt": "YQ=="})},
			values: gateways(nil, nil), made: "new", secret: "sluice-group"},
		{name: "a Secret of one's own", cluster: []runtime.Object{system},
			values: gateways(values{"secret": "mine"}, nil), secret: "mine"},
		{name: "cert-manager",
			values: gateways(values{"issuerRef": values{"name": "ca", "kind": "ClusterIssuer"}}, nil),
			made: "  isCA: true\n  commonName: sluice-group\n  secretName: sluice-group\n" +
				"  privateKey: {algorithm: ECDSA, size: 256}\n" +
				"  issuerRef:\n    kind: ClusterIssuer\n    name: ca\n",
			secret: "sluice-group"},
		{name: "files of one's own", cluster: []runtime.Object{system},
			values: gateways(nil, values{"tls": values{"certFile": "/a", "keyFile": "/b", "caFile": "/c"}})},
		{name: "gateways by their Nodes",
			values: values{"config": values{"group": values{"nodes": "sluice.dev/gateway=true"}}},
			secret: "sluice-group"},
		{name: "gateways by a list and by Nodes", values: gateways(nil, values{"nodes": "sluice.dev/gateway=true"}),
			refused: "members lists the gateways, and nodes selects their Nodes"},
		{name: "certificates without gateways", values: values{"group": values{"secret": "mine"}},
			refused: "config.group.members is empty"},
		{name: "two Secrets", values: gateways(values{"secret": "mine", "issuerRef": values{"name": "ca"}}, nil),
			refused: "set one of them"},
		{name: "a Secret beside files",
			values:  gateways(values{"secret": "mine"}, values{"tls": values{"certFile": "/a"}}),
			refused: "config.group.tls names files of your own"},
		{name: "an issuer without a name", values: gateways(values{"issuerRef": values{"kind": "Issuer"}}, nil),
			refused: "group.issuerRef has no name"},
		{name: "a directory that all share", values: gateways(nil, values{"stateDir": "/var/lib"}),
			refused: "group.stateDir is /var/lib:"},
		{name: "a value that is not known", values: gateways(values{"secretName": "x"}, nil),
			refused: "'secretName' not allowed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := loader.LoadDir(chartDir)
			if err != nil {
				t.Fatal(err)
			}
			var in engine.ClientProvider
			if tt.cluster != nil {
				in = cluster{tt.cluster}
			}
			files, err := renderIn(in, c, tt.values, kubernetes)
			if tt.refused != "" {
				if err == nil || !strings.Contains(err.Error(), tt.refused) {
					t.Errorf("%v, want %s", err, tt.refused)
				}
				return
			} else if err != nil {
				t.Fatal(err)
			}
			got := files["sluice/templates/group.yaml"]
			if tt.made == "new" {
				again, err := renderIn(in, c, tt.values, kubernetes)
				if err != nil || again["sluice/templates/group.yaml"] == got {
					t.Errorf("%v, or two renderings have the same key", err)
				}
				checkAuthority(t, got)
			} else if !strings.Contains(got, tt.made) || tt.made == "" && strings.TrimSpace(got) != "" {
				t.Errorf("got %s\nwant %s", got, tt.made)
			}
			pod, config := files["sluice/templates/daemonset.yaml"], files["sluice/templates/configmap.yaml"]
			mounted, group := tt.secret != "", tt.values != nil
			if strings.Contains(pod, mount) != mounted || strings.Contains(config, setting) != mounted ||
				mounted && !strings.Contains(pod, "secret: {secretName: "+tt.secret+", ") {
				t.Errorf("want Secret %q to be mounted and named:\n%s\n%s", tt.secret, pod, config)
			}
			policy := strings.Contains(files["sluice/templates/groupsources.yaml"],
				"kind: ValidatingAdmissionPolicyBinding")
			if policy != strings.Contains(config, "nodes: sluice.dev/gateway=true") {
				t.Errorf("want a policy for annotations only with Nodes:\n%s",
					files["sluice/templates/groupsources.yaml"])
			}
			if strings.Contains(pod, disk) != group || strings.Contains(pod, "checksum/group: ") != group {
				t.Errorf("want a directory on the disk, and a rollout with the list: %t:\n%s", group, pod)
			}
		})
	}
}

// checkAuthority checks that a Secret has an authority with which gateways can sign.
func checkAuthority(t *testing.T, secret string) {
	t.Helper()
	var s struct{ Data map[string][]byte }
	if err := yaml.Unmarshal([]byte(secret), &s); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(s.Data["tls.crt"], s.Data["tls.key"])
	if err != nil {
		t.Fatalf("%v: %s", err, secret)
	}
	if !pair.Leaf.IsCA || pair.Leaf.KeyUsage&x509.KeyUsageCertSign == 0 ||
		pair.Leaf.NotAfter.Before(time.Now().AddDate(50, 0, 0)) || !bytes.Equal(s.Data["ca.crt"], s.Data["tls.crt"]) {
		t.Errorf("an authority of usage %b until %v", pair.Leaf.KeyUsage, pair.Leaf.NotAfter)
	}
}

// TestGroupRolls: a change of the list of gateways rolls the pods, which another change does not.
func TestGroupRolls(t *testing.T) {
	checksum := regexp.MustCompile(`checksum/group: (\S+)`)
	sum := func(config map[string]any) string {
		b, err := Manifests(chartDir, gateways(nil, config))
		if err != nil {
			t.Fatal(err)
		}
		m := checksum.FindSubmatch(b)
		if m == nil {
			t.Fatalf("no checksum: %s", b)
		}
		return string(m[1])
	}
	first := sum(nil)
	other := map[string]any{"name": "gw-c", "address": "192.0.2.3:9473",
		"sources": []any{"198.51.100.5", "198.51.100.6"}}
	if sum(map[string]any{"members": []any{other}}) == first || sum(nil) != first {
		t.Error("the checksum is not that of the list")
	}
}

// TestNotes: the notes printed after an installation give a node the labels that select gateways.
func TestNotes(t *testing.T) {
	type values = map[string]any
	const label, ours = "kubectl label node NODE", "node-restriction.kubernetes.io/sluice-gateway"
	for _, tt := range []struct {
		name          string
		selector      values // over the chart's
		want, wantNot string
	}{
		{name: "the chart's label", selector: values{},
			want: label + " node-restriction.kubernetes.io/sluice-gateway=true\n"},
		{name: "another", selector: values{ours: nil, "tier": "edge"}, want: label + " tier=edge\n"},
		{name: "two", selector: values{ours: nil, "tier": "edge", "zone": "a"}, want: label + " tier=edge zone=a\n"},
		{name: "all nodes", selector: values{ours: nil}, want: "on all nodes", wantNot: label},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := loader.LoadDir(chartDir)
			if err != nil {
				t.Fatal(err)
			}
			files, err := templates(c, values{"nodeSelector": tt.selector}, kubernetes)
			if err != nil {
				t.Fatal(err)
			}
			notes := files["sluice/templates/NOTES.txt"]
			if !strings.Contains(notes, tt.want) || tt.wantNot != "" && strings.Contains(notes, tt.wantNot) {
				t.Errorf("want %q, and not %q:\n%s", tt.want, tt.wantNot, notes)
			}
		})
	}
}

// TestKubernetesVersion: parts whose schemas use functions of Kubernetes 1.31 are rejected on older
// versions before anything is installed; the gateway alone is accepted.
func TestKubernetesVersion(t *testing.T) {
	c, err := loader.LoadDir(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		part, kubernetes string
		refused          bool
	}{
		{"controller", "v1.30.14", true},
		{"controller", "v1.30.14-eks-1234567", true},
		{"announcer", "v1.29.0", true},
		{"controller", "v1.31.0", false},
		{"controller", "v1.31.0-gke.100", false},
		{"announcer", "v1.33.1+k3s1", false},
		{"podMonitor", "v1.29.0", false},
	} {
		t.Run(tt.part+" "+tt.kubernetes, func(t *testing.T) {
			_, err := templates(c, map[string]any{tt.part: map[string]any{"enabled": true}}, tt.kubernetes)
			if tt.refused != (err != nil && strings.Contains(err.Error(), "need Kubernetes 1.31 or newer")) {
				t.Errorf("%v, want refused: %v", err, tt.refused)
			}
		})
	}
}
