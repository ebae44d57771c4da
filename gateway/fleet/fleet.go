// Package fleet is `kubectl sluice`: a command of sluice on all gateways of a cluster at once.
//
//	kubectl get pods ──▶ gateways ──▶ kubectl exec POD -- sluice COMMAND, all at once ──▶ merge
//
// kubectl finds the program (cmd/kubectl-sluice) in the PATH. It sends everything through kubectl
// itself, so it logs in as kubectl does, and RBAC of pods/exec decides who may use it.
package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// kubectl sends requests to a cluster.
type kubectl struct {
	program string
	global  []string // flags such as --context
}

// run runs kubectl. It returns the messages that kubectl wrote: as the error, or as notes if there
// is none.
func (k *kubectl) run(ctx context.Context, out io.Writer, args ...string) (notes []string, err error) {
	c := exec.CommandContext(ctx, k.program, append(slices.Clone(k.global), args...)...)
	c.WaitDelay = time.Second
	var errs bytes.Buffer
	c.Stdout, c.Stderr = out, &errs
	err = c.Run()
	list := messages(errs.String())
	switch {
	case err == nil:
		return list, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, exec.ErrNotFound):
		return nil, fmt.Errorf("%s is not in the PATH: install it, it is used to reach the gateways", k.program)
	case len(list) > 0:
		return nil, errors.New(strings.Join(list, "; "))
	}
	return nil, err
}

// logged is the head of a line of kubectl's own log (k8s.io/klog).
var logged = regexp.MustCompile(`^[EFIW]\d{4} \d\d:`)

// messages returns the messages of a command, without kubectl's log, its line about the exit code,
// and the name of the program.
func messages(text string) (lines []string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line != "" && !logged.MatchString(line) && !strings.HasPrefix(line, "command terminated with exit code") &&
			!strings.HasPrefix(line, "Run `sluice help`") {
			lines = append(lines, strings.TrimPrefix(line, "sluice: "))
		}
	}
	return lines
}

// gateway is a gateway's pod.
type gateway struct {
	Node, Namespace, Pod string
	// Unready is the reason why the pod cannot run a command; empty if it can.
	Unready string
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
	} `json:"metadata"`
	Spec struct {
		NodeName string `json:"nodeName"`
	} `json:"spec"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

// gateways lists the gateways by node. Where two pods run on a node, as in an update, it is the
// older one that is not ending: the other one waits for it.
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
	slices.SortStableFunc(list.Items, func(a, b pod) int {
		return cmp.Or(cmp.Compare(a.Spec.NodeName, b.Spec.NodeName), cmp.Compare(a.rank(), b.rank()),
			a.Metadata.CreationTimestamp.Compare(b.Metadata.CreationTimestamp))
	})
	var found []gateway
	for i := range list.Items {
		p := &list.Items[i]
		if n := len(found); n > 0 && p.Spec.NodeName != "" && found[n-1].Node == p.Spec.NodeName {
			continue
		}
		g := gateway{Node: cmp.Or(p.Spec.NodeName, p.Metadata.Name), Namespace: p.Metadata.Namespace,
			Pod: p.Metadata.Name}
		if p.Status.Phase != "Running" {
			g.Unready = fmt.Sprintf("pod %s is %s", g.Pod, p.Status.Phase)
		}
		found = append(found, g)
	}
	if len(found) == 0 {
		where := "any namespace"
		if namespace != "" {
			where = "namespace " + namespace
		}
		return nil, fmt.Errorf("no pod in %s has the labels %s: give the labels of the gateways with --selector", where,
			selector)
	}
	return found, nil
}

// rank is 0 for a pod that may forward.
func (p *pod) rank() int {
	switch {
	case p.Status.Phase != "Running":
		return 2
	case p.Metadata.DeletionTimestamp != nil:
		return 1
	}
	return 0
}

// answer is what one gateway printed.
type answer struct {
	gateway
	out   []byte
	notes []string
	err   error
}

// ask runs a command on all gateways at once. Answers are in the order of the gateways.
func (k *kubectl) ask(ctx context.Context, list []gateway, container string, within time.Duration, command []string,
) []answer {
	answers := make([]answer, len(list))
	var group sync.WaitGroup
	for i, g := range list {
		answers[i].gateway = g
		group.Go(func() {
			var out bytes.Buffer
			answers[i].notes, answers[i].err = k.exec(ctx, &g, container, within, &out, command)
			answers[i].out = out.Bytes()
		})
	}
	group.Wait()
	return answers
}

// exec runs a command on one gateway.
func (k *kubectl) exec(ctx context.Context, g *gateway, container string, within time.Duration, out io.Writer,
	command []string,
) (notes []string, err error) {
	if g.Unready != "" {
		return nil, errors.New(g.Unready)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("no answer within %v", within))
	defer cancel()
	args := []string{"exec", "--namespace", g.Namespace, g.Pod, "--container", container, "--", "sluice"}
	return k.run(ctx, out, append(args, command...)...)
}
