// Package reload replaces the daemon that runs by the program and the configuration that are
// installed now, for a service manager: it starts the next process, which takes over from the
// running one, and says when it has.
package reload

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/gateway/handover"
	"sluice.dev/sluice/serve/status"
)

// Config says what to start, and where it answers.
type Config struct {
	Program string // the daemon's
	Args    []string
	// StatusSocket is that of the daemon that forwards, WaitingSocket the next one's while it waits
	// for that, which it is told (config.WaitingVariable).
	StatusSocket, WaitingSocket string
	// NotifySocket is where the service manager is told which process is the main one (MAINPID,
	// sd_notify(3)), or empty.
	NotifySocket string
	Within       time.Duration // until the next process has taken over, or is to be ended
	// Decide is how long a hand-over takes at most, which may be under way then.
	Decide time.Duration
}

// Within is shorter than systemd's DefaultTimeoutStartSec, which bounds a reload, too: what it
// kills is this process, and the next one would wait on. So is the sum with what a hand-over takes.
const Within = 75 * time.Second

// decide is how long a hand-over takes at most from the offer on, and a second.
var decide = handover.DefaultTimes.Prepare + handover.DefaultTimes.Assume + time.Second

// Daemon replaces the daemon of a configuration file by this program.
func Daemon(ctx context.Context, file string) error {
	c, err := config.Load(file)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return Run(ctx, Config{
		Program: self, Args: []string{"run", "--config", file, "--take-over"},
		StatusSocket: c.StatusSocket(), WaitingSocket: c.ReloadSocket(), NotifySocket: os.Getenv("NOTIFY_SOCKET"),
		Within: Within, Decide: decide,
	})
}

// Run starts the next process and returns once that has what the running one had. After an error
// that one has ended, and the running one goes on; but where the running one has ended, the next
// one is the only one, and stays.
func Run(ctx context.Context, c Config) error {
	pid, err := status.PeerPID(c.StatusSocket)
	switch {
	case err != nil:
		return fmt.Errorf("there is no daemon to take over from: %w", err)
	case pid == 0:
		return errors.New("the daemon that runs is in another container: let a pod of its own take over")
	}
	before, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("there is no daemon to take over from: process %d: %w", pid, err)
	}
	defer unix.Close(before)
	n := next{Config: c, before: before, ended: make(chan error, 1)}
	if err := n.start(); err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, c.Within)
	defer cancel()
	if err := n.await(within); err != nil {
		return n.end(err)
	}
	return n.notify()
}

// next is the process that is to take over.
type next struct {
	Config
	before int // a descriptor of the process that ran (pidfd_open(2))
	cmd    *exec.Cmd
	ended  chan error
}

// start starts it in a session of its own, with this process's output: it stays when this one ends.
func (n *next) start() error {
	n.cmd = exec.Command(n.Program, n.Args...)
	n.cmd.Stdout, n.cmd.Stderr = os.Stdout, os.Stderr
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// By the variable it tells the manager nothing before it has taken over: until then another
	// process is the main one.
	n.cmd.Env = append(os.Environ(), config.WaitingVariable+"="+n.WaitingSocket)
	if err := n.cmd.Start(); err != nil {
		return fmt.Errorf("start the next process: %w", err)
	}
	go func() { n.ended <- n.cmd.Wait() }()
	return nil
}

// lookEvery is the interval of looking at the sockets. From the end of the running process until
// the manager knows the next one it has none, and waits only for this one.
const lookEvery = 10 * time.Millisecond

// refusals are how often the next process must have asked in vain, some three seconds after the
// first time, for it to be ended: what passes has passed by then.
const refusals = 3

// await waits until the process owns the status socket.
func (n *next) await(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	said := ""
	for {
		if n.owns() {
			return nil
		}
		if v, ok := n.waits(ctx); ok && v.TakeOver != nil && v.TakeOver.Asked > 0 {
			said = vain(v.TakeOver)
			if v.TakeOver.Asked >= refusals {
				return errors.New(said)
			}
		}
		select {
		case err := <-n.ended:
			n.ended <- err
			if err == nil {
				err = errors.New("exit status 0")
			}
			if n.alone() {
				return fmt.Errorf("the next process ended, and so has the one before; its log says why: %w", err)
			}
			return fmt.Errorf("the next process ended, and the running one goes on; its log says why: %w", err)
		case <-ctx.Done():
			if said == "" {
				said = n.silent()
			}
			return fmt.Errorf("the next process has not taken over within %v: %s", n.Within, said)
		case <-tick.C:
		}
	}
}

// vain says why a process that has asked was given nothing.
func vain(v *status.TakeOverView) string {
	if v.Unable != "" {
		return "the next process cannot take over, and the running one goes on: " + v.Unable
	}
	return "the running process does not hand over, and goes on: " + strings.Join(v.Refused, "; ")
}

// silent says why the process may have said nothing.
func (n *next) silent() string {
	if pid, err := status.PeerPID(n.WaitingSocket); err == nil && pid != n.pid() {
		who := fmt.Sprintf("process %d", pid)
		if pid == 0 {
			who = "a process of another container"
		}
		return fmt.Sprintf("%s has %s, as one of a reload before that waits, and so the next one could not say why: "+
			"end that one; why is in the log of the next one", who, n.WaitingSocket)
	}
	return "it has not compiled all objects: is the API server away?"
}

func (n *next) pid() int { return n.cmd.Process.Pid }

// owns reports whether the process has the status socket, which it takes with all the rest.
func (n *next) owns() bool {
	pid, err := status.PeerPID(n.StatusSocket)
	return err == nil && pid == n.pid()
}

// alone reports whether the process that ran has ended: then the next one has all, or starts.
func (n *next) alone() bool {
	p := []unix.PollFd{{Fd: int32(n.before), Events: unix.POLLIN}}
	ready, err := unix.Poll(p, 0)
	return err == nil && ready > 0
}

// isWaiting reports whether the process is known to wait for the running one, which it does until
// it is given something: then it has no socket, as where the next one of a reload before has that.
func (n *next) isWaiting() bool {
	pid, err := status.PeerPID(n.WaitingSocket)
	return err == nil && pid == n.pid()
}

// waits asks the process while it waits for the running one.
func (n *next) waits(ctx context.Context) (v status.StatusView, ok bool) {
	if !n.isWaiting() {
		return v, false
	}
	client := status.NewClient(n.WaitingSocket)
	v, err := client.Status(ctx, false)
	return v, err == nil
}

// notify makes the process the service's main one. This process must be alive when the manager
// reads it, and must not have ended when the manager notices the end of the process before: as
// long as the command of ExecReload runs, that ends nothing (service_sigchld_event,
// src/core/service.c of systemd).
func (n *next) notify() error {
	if n.NotifySocket == "" {
		return nil
	}
	conn, err := net.Dial("unixgram", n.NotifySocket)
	if err == nil {
		_, err = fmt.Fprintf(conn, "MAINPID=%d\nSTATUS=taken over from the process before", n.pid())
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		return fmt.Errorf("process %d has taken over, and the service manager does not know: %w", n.pid(), err)
	}
	return nil
}

// endWithin is how long a process that does not take over may take to end.
const endWithin = 20 * time.Second

// stays reports whether the next process is the one that forwards, or will. While it is being given
// what the running one has, that is not decided: SIGTERM could end the one that has just got all,
// after the running one has given it. So it waits for that. One that is known to wait for the
// running one is far from it.
func (n *next) stays() bool {
	for deadline := time.Now().Add(n.Decide); ; time.Sleep(lookEvery) {
		switch {
		case len(n.ended) > 0:
			return false
		case n.alone() || n.owns():
			return true
		case n.isWaiting() || time.Now().After(deadline):
			return false
		}
	}
}

// end ends the process, unless it has taken over after all, and returns why.
func (n *next) end(why error) error {
	if n.stays() {
		if n.owns() {
			return n.notify()
		}
		return errors.Join(fmt.Errorf("the process before has ended, and the next one, %d, stays in its place: %w",
			n.pid(), why), n.notify())
	}
	_ = n.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-n.ended:
		return why
	case <-time.After(endWithin):
		return errors.Join(why, fmt.Errorf("the next process still ran %v after SIGTERM, and was killed", endWithin),
			n.cmd.Process.Kill())
	}
}
