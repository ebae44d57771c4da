package metallb

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sluice.dev/sluice/allocate/pools"
	"sluice.dev/sluice/announce/kinds"
)

// services runs the controller's allocator on all Services, with the converted pools.
func (c *conversion) services() {
	list, selecting := c.pools()
	var allocator pools.Allocator
	allocator.SetPools(list)
	pools.SortByAge(c.loadBalancers)
	for _, s := range c.loadBalancers {
		allocator.Adopt(s, c.namespaces[s.Namespace])
	}
	unknown := map[string]bool{}
	for _, s := range c.loadBalancers {
		one := Service{Service: pools.KeyOf(s), Has: join(pools.StatusOf(s))}
		r := allocator.Converge(s, c.namespaces[s.Namespace])
		one.Gets, one.Pool = join(r.Addresses), r.Pool
		note := func(field, do, format string, args ...any) {
			one.Notes = append(one.Notes, Note{field, fmt.Sprintf(format, args...), do})
		}
		if r.Refusal != nil {
			note("", "", "%s", r.Refusal.Error())
		}
		for _, n := range r.Notes {
			note("", "", "%s", n.Error())
		}
		if r.Refusal == nil && len(r.Addresses) == 0 {
			note("spec.clusterIPs", "give it as kubectl get -o yaml prints it", "its address families are not known")
		}
		if class := s.Spec.LoadBalancerClass; class != nil && *class != c.options.Class {
			note("spec.loadBalancerClass", "set controller.class to it, or create the Service again",
				"is %s, and the controller serves %s", *class, c.options.Class)
		}
		for _, name := range slices.Sorted(maps.Keys(s.Annotations)) {
			if pools.AnnotationOfMetalLB(name) && !pools.AnnotationRead(name) {
				note(name, "nothing: it may stay", "is not read; the condition sluice.dev/Allocated names the pool")
			}
		}
		if _, there := c.namespaces[s.Namespace]; selecting && !there {
			unknown[s.Namespace] = true
		}
		c.result.Services = append(c.result.Services, one)
	}
	if len(unknown) > 0 {
		c.result.Warnings = append(c.result.Warnings, "pools have namespaceSelectors, but the labels of these "+
			"namespaces are not known, also give their objects: "+strings.Join(slices.Sorted(maps.Keys(unknown)), ", "))
	}
}

// pools returns the converted pools, and whether one selects Services by labels of namespaces.
func (c *conversion) pools() (list []*pools.Pool, selecting bool) {
	for _, one := range c.own {
		if one.own == nil || !kinds.Pools(one.own.GetKind()) {
			continue
		}
		set, _ := new(kinds.Reader).Read([]*unstructured.Unstructured{one.own})
		if len(set.Pools) == 0 {
			continue
		}
		p := set.Pools[0].Pool
		for _, text := range pools.OverlapsWith(p, list) {
			one.entry.Notes = append(one.entry.Notes, Note{Field: "spec.addresses", Text: text})
		}
		list = append(list, p)
		selecting = selecting || p.SelectsNamespaces()
	}
	return list, selecting
}

func join(list []netip.Addr) string {
	var texts []string
	for _, a := range list {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ", ")
}
