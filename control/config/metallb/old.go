package metallb

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	sigsyaml "sigs.k8s.io/yaml"

	"sluice.dev/sluice/control/announce/kinds"
)

// Up to version 0.12 MetalLB had its configuration in a ConfigMap, with other spellings of the same
// fields; kind AddressPool of 0.13 has a pool's part of it.

// oldConfig is that configuration.
type oldConfig struct {
	Peers       []map[string]any  `json:"peers"`
	Pools       []map[string]any  `json:"address-pools"`
	Communities map[string]string `json:"bgp-communities"`
	Profiles    []map[string]any  `json:"bfd-profiles"`
}

// addConfigMap takes in the objects that a ConfigMap stands for.
func (c *conversion) addConfigMap(o *unstructured.Unstructured) error {
	m := &corev1.ConfigMap{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, m); err != nil {
		return fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
	}
	var raw map[string]any
	if err := sigsyaml.Unmarshal([]byte(m.Data["config"]), &raw); err != nil || raw["peers"] == nil &&
		raw["address-pools"] == nil { // another program's
		c.result.Skipped[o.GetKind()]++
		return nil
	}
	var config oldConfig
	if err := sigsyaml.UnmarshalStrict([]byte(m.Data["config"]), &config); err != nil {
		return fmt.Errorf("%s %s: data.config: %w", o.GetKind(), o.GetName(), err)
	}
	add := func(version, kind, name string, spec map[string]any) { c.addOld(o, version, kind, name, spec) }
	for i, peer := range config.Peers {
		add("v1beta2", "BGPPeer", fmt.Sprint("peer", i+1), renamed(peer))
	}
	for _, pool := range config.Pools {
		name, _ := pool["name"].(string)
		delete(pool, "name")
		c.addOldPool(o, name, pool)
	}
	if len(config.Communities) > 0 {
		var list []any
		for _, name := range slices.Sorted(maps.Keys(config.Communities)) {
			list = append(list, map[string]any{"name": name, "value": config.Communities[name]})
		}
		add("v1beta1", "Community", "communities", map[string]any{"communities": list})
	}
	for _, profile := range config.Profiles {
		name, _ := profile["name"].(string)
		delete(profile, "name")
		add("v1beta1", "BFDProfile", name, renamed(profile))
	}
	return nil
}

// addOldPool takes in a pool and its advertisements, which were a part of it.
func (c *conversion) addOldPool(from *unstructured.Unstructured, name string, pool map[string]any) {
	spec := renamed(pool)
	protocol, _ := spec["protocol"].(string)
	list, _ := spec["bgpAdvertisements"].([]any)
	delete(spec, "protocol")
	delete(spec, "bgpAdvertisements")
	c.addOld(from, "v1beta1", "IPAddressPool", name, spec)
	of := map[string]any{"ipAddressPools": []any{name}}
	switch {
	case protocol == "layer2":
		c.addOld(from, "v1beta1", "L2Advertisement", name, of)
	case len(list) == 0:
		c.addOld(from, "v1beta1", "BGPAdvertisement", name, of)
	}
	for i, one := range list {
		advertisement, _ := one.(map[string]any)
		advertisement = maps.Clone(advertisement)
		if advertisement == nil {
			advertisement = map[string]any{}
		}
		advertisement["ipAddressPools"] = of["ipAddressPools"]
		c.addOld(from, "v1beta1", "BGPAdvertisement", fmt.Sprint(name, "-", i+1), advertisement)
	}
}

func (c *conversion) addOld(from *unstructured.Unstructured, version, kind, name string, spec map[string]any) {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": kinds.MetalLB + "/" + version, "kind": kind,
		"spec": spec}}
	o.SetName(name)
	o.SetNamespace(from.GetNamespace())
	if c.origins == nil {
		c.origins = map[*unstructured.Unstructured]string{}
	}
	c.origins[o] = kinds.RefOf(from).String()
	c.theirs = append(c.theirs, o)
}

// spellings are those that do not follow from the words.
var spellings = map[string]string{"my-asn": "myASN", "peer-asn": "peerASN", "router-id": "routerID",
	"ebgp-multihop": "ebgpMultiHop", "localpref": "localPref", "avoid-buggy-ips": "avoidBuggyIPs"}

// renamed returns fields with their names of today: words with hyphens were joined.
func renamed(fields map[string]any) map[string]any {
	out := map[string]any{}
	for name, value := range fields {
		now, there := spellings[name]
		if !there {
			words := strings.Split(name, "-")
			for i := 1; i < len(words); i++ {
				words[i] = strings.ToUpper(words[i][:min(1, len(words[i]))]) + words[i][min(1, len(words[i])):]
			}
			now = strings.Join(words, "")
		}
		if list, ok := value.([]any); ok {
			list = slices.Clone(list)
			for i := range list {
				if one, ok := list[i].(map[string]any); ok {
					list[i] = renamed(one) // labels are no list, and stay
				}
			}
			value = list
		}
		out[now] = value
	}
	return out
}
