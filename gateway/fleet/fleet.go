// Package fleet is `kubectl sluice`: a command of sluice on all gateways of a cluster at once.
//
//	kubectl get pods ──▶ gateways ──▶ kubectl exec POD -- sluice COMMAND, all at once ──▶ merge
//
// kubectl finds the program (cmd/kubectl-sluice) in the PATH. It sends everything through kubectl
// itself, so it logs in as kubectl does, and RBAC of pods/exec decides who may use it.
package fleet

import (
	"bytes"
	"context"
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
