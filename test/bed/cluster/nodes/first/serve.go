package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/cluster/nodes/spec"
)

// whenEvery is the interval at which the conditions of waiting programs are checked.
const whenEvery = 20 * time.Millisecond

// serve starts the programs, each when it may, and reaps what ends, orphans of containers too. It
// returns when a program has ended or the node is asked to: the kernel then kills all that is left.
func serve(n *spec.Node) error {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	tick := time.NewTicker(whenEvery)
	defer tick.Stop()
	running, waiting := map[int]string{}, n.Programs
	for {
		for len(waiting) > 0 && exists(waiting[0].When) {
			pid, err := start(&waiting[0], n.Env)
			if err != nil {
				return err
			}
			running[pid], waiting = waiting[0].Path, waiting[1:]
		}
		if len(waiting) == 0 {
			tick.Stop()
		}
		select {
		case <-asked:
			return nil
		case <-tick.C:
		case <-children:
			if err := reap(running); err != nil {
				return err
			}
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return path == "" || err == nil
}

// start starts a program. It is not waited for by os.Process: reap does that for all.
func start(p *spec.Program, env []string) (pid int, err error) {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return 0, err
	}
	defer log.Close() // the program has its own
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	pid, err = syscall.ForkExec(p.Path, append([]string{p.Path}, p.Args...), &syscall.ProcAttr{
		Env: env, Dir: "/", Files: []uintptr{null.Fd(), log.Fd(), log.Fd()}, Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", p.Path, err)
	}
	return pid, nil
}

// reap takes all that have ended. One of the programs must not.
func reap(running map[int]string) error {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil || pid == 0:
			return nil // nobody is left, or nobody has ended
		}
		if path, ok := running[pid]; ok {
			return fmt.Errorf("%s ended: status %d, signal %d", path, status.ExitStatus(), status.Signal())
		}
	}
}
