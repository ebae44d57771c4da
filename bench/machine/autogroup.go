package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	// autogroup has the group of this process's session and its nice value, as
	// "/autogroup-42 nice 0" (sched(7), "The autogroup feature").
	autogroup        = "/proc/self/autogroup"
	autogroupEnabled = "/proc/sys/kernel/sched_autogroup_enabled"
	// firstNice is the nice value of a session that goes before all others.
	firstNice = -20
)

// GoFirst puts the threads of this session before those of all others, until the caller calls undo.
// The kernel shares processors among sessions first, whatever the nice values of their threads are;
// where it does not, and without CAP_SYS_NICE, that is an error. A process that is killed undoes
// nothing: the session keeps the value.
func GoFirst() (undo func() error, err error) {
	nice, err := sessionNice()
	if err == nil {
		err = setAutogroup(firstNice)
	}
	if err != nil {
		return nil, fmt.Errorf("put this session before others: %w", err)
	}
	return func() error { return setAutogroup(nice) }, nil
}

// sessionNice returns the nice value of the session by which its threads are scheduled.
func sessionNice() (int, error) {
	text, err := os.ReadFile(autogroup)
	if err != nil {
		return 0, fmt.Errorf("%w (the kernel needs CONFIG_SCHED_AUTOGROUP)", err)
	}
	if enabled, err := os.ReadFile(autogroupEnabled); err != nil || strings.TrimSpace(string(enabled)) != "1" {
		return 0, fmt.Errorf("%s is not 1: sessions are not grouped", autogroupEnabled)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0, err
	}
	if top := topCgroup(string(own)); top != "" {
		if _, err := os.Stat(filepath.Join("/sys/fs/cgroup", top, "cpu.weight")); err == nil {
			return 0, errors.New("this process is in a cgroup that has a cpu.weight, by which it is scheduled instead")
		}
	}
	return parseAutogroup(string(text))
}

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

func parseAutogroup(text string) (nice int, err error) {
	_, value, ok := strings.Cut(strings.TrimSpace(text), " nice ")
	if !ok {
		return 0, fmt.Errorf("%s is %q: there is no nice value in it", autogroup, text)
	}
	return strconv.Atoi(value)
}

func setAutogroup(nice int) error { return os.WriteFile(autogroup, []byte(strconv.Itoa(nice)), 0) }
