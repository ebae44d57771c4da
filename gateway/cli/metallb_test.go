package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const metalLBFile = `apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: public, namespace: metallb-system}
spec: {addresses: [203.0.113.0/28]}
---
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: tor, namespace: metallb-system}
spec: {myASN: 64500, peerASN: 64501, peerAddress: 10.0.0.254, vrf: red}
---
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {name: all, namespace: metallb-system}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: LoadBalancer, clusterIPs: [10.96.0.1], ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.7}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: controller}
`

// Standard output is a manifest and nothing else; standard error has a line for each object, each
// Service and each field that is not done.
func TestFromMetalLB(t *testing.T) {
	file := filepath.Join(t.TempDir(), "metallb.yaml")
	if err := os.WriteFile(file, []byte(metalLBFile), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := sluice(t, "config", "from-metallb", file)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	golden(t, "from-metallb.table", errs)
	golden(t, "from-metallb.manifest", out)
	code, out, errs = sluice(t, "config", "from-metallb", file, "-o", "json")
	var parsed struct {
		Objects, Services []map[string]any
		Manifest          string
	}
	if err := json.Unmarshal([]byte(out), &parsed); err != nil || code != exitOK || errs != "" {
		t.Fatalf("exit code %d, %v: %s", code, err, errs)
	}
	if len(parsed.Objects) != 3 || len(parsed.Services) != 1 ||
		!strings.Contains(parsed.Manifest, "kind: AddressPool") {
		t.Errorf("-o json: %s", out)
	}
}

// TestFromMetalLBRefuses: what cannot be read makes no output that looks like a manifest.
func TestFromMetalLBRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "metallb.yaml")
	if err := os.WriteFile(file, []byte(metalLBFile+"---\nspec: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	refuses(t, "from-metallb", []refusal{
		{"no Kubernetes object", []string{file}, exitFailure, file + ": document 6: apiVersion and kind are missing"},
		{"no file", []string{file + "x"}, exitFailure, "no such file"},
		{"no argument", nil, exitUsage, "from-metallb takes files"},
	})
}
