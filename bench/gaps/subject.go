package gaps

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"sluice.dev/sluice/bench/cluster"
	"sluice.dev/sluice/bench/topo"
	"sluice.dev/sluice/bench/updates"
	"sluice.dev/sluice/control/k8s/k8stest"
)

// subject is a measured process and the API server that only it reads. Between its
// windows it is stopped by SIGSTOP.
type subject struct {
	Variant
	population *updates.Config
	server     *k8stest.Server
	command    *exec.Cmd
	in         io.WriteCloser
	out        *bufio.Reader
	changed    int // so far
}

// newSubject starts both, and returns when the first table is published.
func newSubject(ctx context.Context, c *Config, v Variant) (s *subject, err error) {
	s = &subject{Variant: v, population: &c.population, server: k8stest.New()}
	for _, o := range c.population.Population() {
		s.server.Set(o.(runtime.Object))
	}
	s.server.Set(cluster.NewNode(updates.GatewayNode, "").DeepCopy())
	if err := s.server.Start(); err != nil {
		return nil, err
	}
	child := Child{Variant: v, Server: s.server.URL(), CPU: c.CPU, CPUs: c.cpus}
	if c.Profiles != "" {
		child.Profile = fmt.Sprintf("%s/%s.allocs.pprof", c.Profiles, v.Name)
	}
	text, err := json.Marshal(child)
	if err != nil {
		return nil, err
	}
	if err := s.launch(c.Child, string(text)); err != nil {
		s.server.Stop()
		return nil, err
	}
	if err := s.ask("sync", new(string)); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, errors.Join(ctx.Err(), s.halt())
}

func (s *subject) launch(command []string, text string) (err error) {
	s.command = exec.Command(command[0], append(command[1:], text)...)
	s.command.Stderr = os.Stderr
	s.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if s.in, err = s.command.StdinPipe(); err != nil {
		return err
	}
	out, err := s.command.StdoutPipe()
	if err != nil {
		return err
	}
	s.out = bufio.NewReader(out)
	return s.command.Start()
}

// ask sends a line and reads the answer.
func (s *subject) ask(what string, answer any) error {
	if _, err := fmt.Fprintln(s.in, what); err != nil {
		return fmt.Errorf("variant %s: %w", s.Name, err)
	}
	line, err := s.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("variant %s: the measured process ended: %w", s.Name, err)
	}
	return json.Unmarshal(line, answer)
}

// settling is how long a process runs before its window: what was due while it was stopped is done.
const settling = 500 * time.Millisecond

// window measures once. Changes begin before it and end after it.
func (s *subject) window(ctx context.Context, length time.Duration, rate int) (w Window, err error) {
	if err := s.command.Process.Signal(syscall.SIGCONT); err != nil {
		return w, err
	}
	changing, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if !s.Quiet {
			s.change(changing, rate)
		}
	}()
	err = s.watch(ctx, length, &w)
	stop()
	<-ended
	if err != nil {
		return w, err
	}
	return w, errors.Join(s.ask("sync", new(string)), s.halt())
}

func (s *subject) watch(ctx context.Context, length time.Duration, w *Window) error {
	if err := topo.Pause(ctx, settling); err != nil {
		return err
	}
	if err := s.ask("take", new(Window)); err != nil {
		return err
	}
	if err := topo.Pause(ctx, length); err != nil {
		return err
	}
	return s.ask("take", w)
}

// change makes changes on schedule until ctx is done.
func (s *subject) change(ctx context.Context, rate int) {
	every := time.NewTicker(time.Second / time.Duration(rate))
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			s.server.Set(s.population.Change(s.changed))
			s.changed++
		}
	}
}

func (s *subject) halt() error { return s.command.Process.Signal(syscall.SIGSTOP) }

// close ends both, in a way that lets the process write its profile.
func (s *subject) close() error {
	_ = s.command.Process.Signal(syscall.SIGCONT) // it may have ended
	_ = s.in.Close()
	waited := make(chan error, 1)
	go func() { waited <- s.command.Wait() }()
	defer s.server.Stop()
	select {
	case err := <-waited:
		if err != nil {
			return fmt.Errorf("variant %s: the measured process: %w", s.Name, err)
		}
		return nil
	case <-time.After(10 * time.Second):
		return errors.Join(fmt.Errorf("variant %s: the measured process does not end; killed", s.Name),
			s.command.Process.Kill(), <-waited)
	}
}
