package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// gateway is a gateway's pod.
type gateway struct {
	Node, Namespace, Pod string
	// Unready is the reason why the pod cannot run a command; empty if it can.
	Unready string
	// Others are pods that wait for this one, or that it has replaced.
	Others []string
}

// podList has the fields of a list of pods that choose a gateway.
type podList struct {
	Items []pod `json:"items"`
}

type pod struct {
	Metadata struct {
		Name, Namespace   string
		CreationTimestamp time.Time
		DeletionTimestamp *time.Time
		OwnerReferences   []struct{ UID string }
	} `json:"metadata"`
	Spec struct {
		NodeName    string `json:"nodeName"`
		HostNetwork bool   `json:"hostNetwork"`
	} `json:"spec"`
	Status struct {
		Phase      string `json:"phase"`
		Conditions []struct{ Type, Status string }
	} `json:"status"`
}

// gateways lists the gateways. Any tenant may give a pod the labels of a gateway and any owner, so
// without a namespace a gateway's pod must be on the host's network, which the Pod Security level
// baseline refuses to tenants, and all pods must be in one namespace.
func (k *kubectl) gateways(ctx context.Context, namespace, selector string) ([]gateway, error) {
	args := []string{"get", "pods", "--selector", selector, "-o", "json"}
	if namespace == "" {
		args = append(args, "--all-namespaces")
	} else {
		args = append(args, "--namespace", namespace)
	}
	var out bytes.Buffer
	if _, err := k.run(ctx, &out, args...); err != nil {
		return nil, fmt.Errorf("list the gateways' pods: %w", err)
	}
	var list podList
	if err := json.Unmarshal(out.Bytes(), &list); err != nil {
		return nil, fmt.Errorf("kubectl's list of pods cannot be read: %w", err)
	}
	pods := list.Items
	if namespace == "" {
		pods = slices.DeleteFunc(pods, func(p pod) bool { return !p.Spec.HostNetwork })
	}
	switch {
	case len(pods) == 0 && len(list.Items) > 0:
		return nil, fmt.Errorf("the pods with the labels %s are not on the host's network, as a gateway is: name the "+
			"namespace of the gateways with -n", selector)
	case len(pods) == 0:
		where := "any namespace"
		if namespace != "" {
			where = "namespace " + namespace
		}
		return nil, fmt.Errorf("no pod in %s has the labels %s: give the labels of the gateways with --selector", where,
			selector)
	}
	var namespaces []string
	for i := range pods {
		namespaces = append(namespaces, pods[i].Metadata.Namespace)
	}
	slices.Sort(namespaces)
	if namespaces = slices.Compact(namespaces); len(namespaces) > 1 {
		return nil, fmt.Errorf("pods in %d namespaces have the labels %s, and a command must not reach a pod that is "+
			"no gateway: name the namespace of the gateways with -n: %s", len(namespaces), selector,
			strings.Join(namespaces, ", "))
	}
	return choose(pods), nil
}

// choose returns a gateway for each node and controller of pods. Two pods of one controller on a
// node are an update: they share the node's status socket, and one of them is asked.
func choose(pods []pod) (found []gateway) {
	slices.SortStableFunc(pods, func(a, b pod) int {
		return cmp.Or(cmp.Compare(a.node(), b.node()), cmp.Compare(a.owner(), b.owner()),
			cmp.Compare(a.rank(), b.rank()), b.Metadata.CreationTimestamp.Compare(a.Metadata.CreationTimestamp))
	})
	for i := range pods {
		p := &pods[i]
		if i > 0 && pods[i-1].node() == p.node() && pods[i-1].owner() == p.owner() {
			g := &found[len(found)-1]
			g.Others = append(g.Others, p.Metadata.Name)
			continue
		}
		g := gateway{Node: p.node(), Namespace: p.Metadata.Namespace, Pod: p.Metadata.Name}
		if p.Status.Phase != "Running" {
			g.Unready = fmt.Sprintf("pod %s is %s", g.Pod, p.Status.Phase)
		}
		found = append(found, g)
	}
	on := map[string]int{}
	for i := range found {
		on[found[i].Node]++
	}
	for i := range found {
		if g := &found[i]; on[g.Node] > 1 && g.Node != g.Pod {
			g.Node += "/" + g.Pod
		}
	}
	return found
}

// node returns the pod's node or, before it has one, its own name.
func (p *pod) node() string { return cmp.Or(p.Spec.NodeName, p.Metadata.Name) }

// owner returns the UID of the controller that made the pod and may replace it, or the pod's name.
func (p *pod) owner() string {
	if owners := p.Metadata.OwnerReferences; len(owners) > 0 {
		return owners[0].UID
	}
	return p.Metadata.Name
}

// rank is least for a pod that forwards.
func (p *pod) rank() int {
	ready := slices.Contains(p.Status.Conditions, struct{ Type, Status string }{"Ready", "True"})
	switch {
	case p.Status.Phase != "Running":
		return 3
	case p.Metadata.DeletionTimestamp != nil:
		return 2
	case !ready:
		return 1
	}
	return 0
}
