// Package autogroup changes how much processor time the session of this process gets beside other
// sessions.
//
// In a cgroup without a CPU weight, the kernel shares each processor first among sessions, whatever
// the nice values of their threads, and then among the threads of a session (sched(7), "The
// autogroup feature"; kernel/sched/autogroup.c). A session has its own nice value:
//
//	CPU ──► session of the gateway, nice -20 ──► its workers, its other threads
//	    ──► session of somebody,    nice 0   ──► their threads
//	    ──► ksoftirqd and other threads of the kernel, which are in none
package autogroup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Paths of proc(5) and of cgroups(7).
const (
	// own has the group of this process's session and its nice value, as "/autogroup-42 nice 0".
	own     = "/proc/self/autogroup"
	enabled = "/proc/sys/kernel/sched_autogroup_enabled"
	cgroup  = "/proc/self/cgroup"
	cgroups = "/sys/fs/cgroup"
)

// Session is the session of this process. Its methods may be called by one goroutine at a time.
type Session struct {
	file  *os.File
	usual int // nice value that it had
	nice  int
}

// Open returns the session by which this process's threads are scheduled. It is an error if they
// are not scheduled by session. The file stays open, so that a process may change the value after
// it gave up the right to open files.
func Open() (*Session, error) {
	text, err := os.ReadFile(own)
	if err != nil {
		return nil, fmt.Errorf("%w (the kernel needs CONFIG_SCHED_AUTOGROUP)", err)
	}
	if on, err := os.ReadFile(enabled); err != nil || strings.TrimSpace(string(on)) != "1" {
		return nil, fmt.Errorf("%s is not 1: sessions are not grouped", enabled)
	}
	path, err := os.ReadFile(cgroup)
	if err != nil {
		return nil, err
	}
	if top := topCgroup(string(path)); top != "" {
		if _, err := os.Stat(filepath.Join(cgroups, top, "cpu.weight")); err == nil {
			return nil, errors.New("this process is in a cgroup that has a cpu.weight, by which it is scheduled")
		}
	}
	usual, err := parse(string(text))
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(own, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	return &Session{file: file, usual: usual, nice: usual}, nil
}

// Leads reports whether this process leads its session, as one does that a service manager or a
// container runtime started, and not one that a shell started.
func Leads() bool {
	id, err := unix.Getsid(0)
	return err == nil && id == os.Getpid()
}

// Usual is the nice value that the session had when it was opened.
func (s *Session) Usual() int { return s.usual }

// SetNice gives the session a nice value, -20 to 19. Below 0 the process needs CAP_SYS_NICE or a
// limit that allows it (RLIMIT_NICE). Without CAP_SYS_ADMIN the kernel takes ten changes a second
// of all sessions together: then the error is EAGAIN, and the caller may try again later.
func (s *Session) SetNice(nice int) error {
	if nice == s.nice {
		return nil
	}
	if _, err := io.WriteString(s.file, strconv.Itoa(nice)); err != nil {
		return fmt.Errorf("give the session the nice value %d: %w", nice, err)
	}
	s.nice = nice
	return nil
}

// Close leaves the session's nice value unchanged.
func (s *Session) Close() error { return s.file.Close() }

// topCgroup is the highest part of a process's path in the cgroup hierarchy of version 2, below its
// root; empty for the root, and where there is no such hierarchy.
func topCgroup(text string) string {
	for line := range strings.Lines(text) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::/"); ok {
			top, _, _ := strings.Cut(path, "/")
			return top
		}
	}
	return ""
}

func parse(text string) (nice int, err error) {
	_, value, ok := strings.Cut(strings.TrimSpace(text), " nice ")
	if !ok {
		return 0, fmt.Errorf("%s is %q: there is no nice value in it", own, text)
	}
	return strconv.Atoi(value)
}
