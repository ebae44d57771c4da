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

	"sluice.dev/sluice/internal/usage"
)

// kubectl sends requests to a cluster.
type kubectl struct {
	program string
	global  []string // flags such as --context
	most    int      // bytes that one answer may have
}

// run runs kubectl. It returns the messages that kubectl wrote: as the error, or as notes if there
// is none.
func (k *kubectl) run(ctx context.Context, out io.Writer, args ...string) (notes []string, err error) {
	c := exec.CommandContext(ctx, k.program, append(slices.Clone(k.global), args...)...)
	c.WaitDelay = time.Second
	errs := &bounded{most: maxMessageBytes}
	c.Stdout, c.Stderr = out, errs
	err = c.Run()
	list := messages(errs.text.String())
	if errs.full {
		list = append(list, errs.problem())
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return list, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, exec.ErrNotFound):
		return nil, fmt.Errorf("%s is not in the PATH: install it, it is used to reach the gateways", k.program)
	case errors.As(err, &exit):
		return nil, &exitError{exit.ExitCode(), list}
	}
	return nil, err
}

// exitError is the end of a command with an exit code other than 0. kubectl exec ends with the code
// of the command in the pod.
type exitError struct {
	code     int
	messages []string
}

// Error returns the messages, or the code.
func (e *exitError) Error() string {
	if len(e.messages) == 0 {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return strings.Join(e.messages, "; ")
}

// The bounds of what one command may print: a gateway is not trusted with this machine's memory.
const (
	maxAnswerBytes  = 64 << 20
	maxMessageBytes = 1 << 20
)

// bounded keeps the first bytes that are written to it, and accepts the others.
type bounded struct {
	most int // bytes
	text bytes.Buffer
	full bool
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	room := b.most - b.text.Len()
	b.full = b.full || len(p) > room
	b.text.Write(p[:min(len(p), room)])
	return len(p), nil
}

// problem says that the rest is missing.
func (b *bounded) problem() string {
	return fmt.Sprintf("it printed more than %d bytes, and the rest is missing", b.most)
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
	none  bool // it looked and found nothing: usage.Findings
}

// ask runs a command on all gateways at once. Answers are in the order of the gateways.
func (k *kubectl) ask(ctx context.Context, list []gateway, container string, within time.Duration, command []string,
) []answer {
	answers := make([]answer, len(list))
	var group sync.WaitGroup
	for i, g := range list {
		answers[i].gateway = g
		group.Go(func() {
			a, out := &answers[i], &bounded{most: k.most}
			a.notes, a.err = k.exec(ctx, &g, container, within, out, command)
			a.out = out.text.Bytes()
			var exit *exitError
			switch {
			case out.full:
				a.out = a.out[:bytes.LastIndexByte(a.out, '\n')+1]
				a.err = errors.Join(errors.New(out.problem()), a.err)
			case errors.As(a.err, &exit) && exit.code == usage.Findings:
				a.notes, a.err, a.none = exit.messages, nil, true
			}
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
