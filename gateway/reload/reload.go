// Package reload replaces the running daemon by the installed program and configuration, for a
// service manager: it starts the next process, which takes over from the running one, and reports
// when it has.
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

// Config has the program to start, and the sockets of the processes.
type Config struct {
	Program string // path of the daemon's executable
	Args    []string
	// StatusSocket is the socket of the forwarding daemon. WaitingSocket is the socket of the next
	// one while it waits; it gets the path in config.WaitingVariable.
	StatusSocket, WaitingSocket string
	// NotifySocket is the socket on which the service manager learns the main process (MAINPID,
	// sd_notify(3)), or empty.
	NotifySocket string
	Within       time.Duration // the time for the next process to take over, before it is ended
	// Decide is the longest time of a hand-over that is in progress when Within has passed.
	Decide time.Duration
}

// Within is shorter than systemd's DefaultTimeoutStartSec, which also bounds a reload: systemd
// would kill this process, and the next one would keep waiting. Within plus the time of a hand-over
// is shorter, too.
const Within = 75 * time.Second

// decide is the longest time of a hand-over from the offer on, plus a second.
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

// Run starts the next process and returns when that has taken over. After an error, the next
// process has ended and the running one continues; if the running one has ended, the next one
// stays.
func Run(ctx context.Context, c Config) error {
	pid, err := status.PeerPID(c.StatusSocket)
	switch {
	case err != nil:
		return fmt.Errorf("there is no daemon to take over from: %w", err)
	case pid == 0:
		return errors.New("the running daemon is in another container: let another pod of the gateway take over")
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

// next is the process that will take over.
type next struct {
	Config
	before int // descriptor of the process that ran before (pidfd_open(2))
	cmd    *exec.Cmd
	ended  chan error
}

// start starts the process in its own session, with this process's output, so that it stays when
// this process ends.
func (n *next) start() error {
	n.cmd = exec.Command(n.Program, n.Args...)
	n.cmd.Stdout, n.cmd.Stderr = os.Stdout, os.Stderr
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// With the variable it does not notify the manager before it has taken over: until then another
	// process is the main one.
	n.cmd.Env = append(os.Environ(), config.WaitingVariable+"="+n.WaitingSocket)
	if err := n.cmd.Start(); err != nil {
		return fmt.Errorf("start the next process: %w", err)
	}
	go func() { n.ended <- n.cmd.Wait() }()
	return nil
}

// lookEvery is the interval at which the sockets are checked. It is short because the service has
// no main process between the end of the running process and the notification.
const lookEvery = 10 * time.Millisecond

// maxRefusals is the number of refused requests, over some three seconds, after which the next
// process is ended: a temporary reason has passed by then.
const maxRefusals = 3

// await waits until the process owns the status socket.
func (n *next) await(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	why := ""
	for {
		if n.owns() {
			return nil
		}
		if v, ok := n.waits(ctx); ok && v.TakeOver != nil && v.TakeOver.Asked > 0 {
			why = whyRefused(v.TakeOver)
			if v.TakeOver.Asked >= maxRefusals {
				return errors.New(why)
			}
		}
		select {
		case err := <-n.ended:
			n.ended <- err
			if err == nil {
				err = errors.New("exit status 0")
			}
			if n.alone() {
				return fmt.Errorf("the next process and the previous one have ended; see the next one's log: %w", err)
			}
			return fmt.Errorf("the next process ended, and the running one continues; see the next one's log: %w", err)
		case <-ctx.Done():
			if why == "" {
				why = n.whyUnknown()
			}
			return fmt.Errorf("the next process has not taken over within %v: %s", n.Within, why)
		case <-tick.C:
		}
	}
}

// whyRefused returns why a process whose requests were refused did not take over.
func whyRefused(v *status.TakeOverView) string {
	if v.Unable != "" {
		return "the next process cannot take over, and the running one continues: " + v.Unable
	}
	return "the running process does not hand over, and continues: " + strings.Join(v.Refused, "; ")
}

// whyUnknown returns why the process may not have reported its state.
func (n *next) whyUnknown() string {
	if pid, err := status.PeerPID(n.WaitingSocket); err == nil && pid != n.pid() {
		who := fmt.Sprintf("process %d", pid)
		if pid == 0 {
			who = "a process of another container"
		}
		return fmt.Sprintf("%s has %s, perhaps from an earlier reload, so the next process could not report why: "+
			"end that process; the log of the next one has the reason", who, n.WaitingSocket)
	}
	return "it has not compiled all objects: is the API server away?"
}

func (n *next) pid() int { return n.cmd.Process.Pid }

// owns reports whether the process has the status socket, which it takes with everything else.
func (n *next) owns() bool {
	pid, err := status.PeerPID(n.StatusSocket)
	return err == nil && pid == n.pid()
}

// alone reports whether the previous process has ended: then the next one has everything, or
// starts.
func (n *next) alone() bool {
	p := []unix.PollFd{{Fd: int32(n.before), Events: unix.POLLIN}}
	ready, err := unix.Poll(p, 0)
	return err == nil && ready > 0
}

// isWaiting reports whether the process is known to wait for the running one. It waits without a
// socket if the next process of an earlier reload has that.
func (n *next) isWaiting() bool {
	pid, err := status.PeerPID(n.WaitingSocket)
	return err == nil && pid == n.pid()
}

// waits asks the process for its status while it waits for the running one.
func (n *next) waits(ctx context.Context) (v status.StatusView, ok bool) {
	if !n.isWaiting() {
		return v, false
	}
	client := status.NewClient(n.WaitingSocket)
	v, err := client.Status(ctx, false)
	return v, err == nil
}

// notify makes the process the service's main one. This process must be alive when the manager
// reads the message, and must not have ended when the manager notices the end of the previous
// process: while the command of ExecReload runs, that end does not end the service
// (service_sigchld_event, src/core/service.c of systemd).
func (n *next) notify() error {
	if n.NotifySocket == "" {
		return nil
	}
	conn, err := net.Dial("unixgram", n.NotifySocket)
	if err == nil {
		_, err = fmt.Fprintf(conn, "MAINPID=%d\nSTATUS=taken over from the previous process", n.pid())
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		return fmt.Errorf("process %d has taken over, but the service manager was not notified: %w", n.pid(), err)
	}
	return nil
}

// endWithin is the time that a process that does not take over may need to end.
const endWithin = 20 * time.Second

// stays reports whether the next process is the one that forwards, or will forward. During a
// hand-over that is undecided: SIGTERM could end the next process just after the running one has
// handed everything over. So stays waits for the end of the hand-over, unless the process is known
// to wait for the running one.
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

// end ends the process and returns why, unless the process has taken over after all.
func (n *next) end(why error) error {
	if n.stays() {
		if n.owns() {
			return n.notify()
		}
		return errors.Join(fmt.Errorf("the previous process has ended, and the next one, %d, replaces it: %w",
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
