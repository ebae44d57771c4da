package machine

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// autogroup has the group of this process's session and its nice value, as
// "/autogroup-42 nice 0" (sched(7), "The autogroup feature").
const autogroup = "/proc/self/autogroup"

// firstNice is the nice value of a session that goes before all others.
const firstNice = -20

// GoFirst puts the threads of this session before those of all others, until the caller calls undo,
// and reports whether it did. The kernel shares processors among sessions first, whatever the nice
// values of their threads are, where nothing else groups them (CONFIG_SCHED_AUTOGROUP); elsewhere,
// and without CAP_SYS_NICE, nothing is changed.
func GoFirst() (undo func() error, ok bool) {
	undo = func() error { return nil }
	text, err := os.ReadFile(autogroup)
	if err != nil {
		return undo, false
	}
	nice, err := parseAutogroup(string(text))
	if err != nil || setAutogroup(firstNice) != nil {
		return undo, false
	}
	return func() error { return setAutogroup(nice) }, true
}

func parseAutogroup(text string) (nice int, err error) {
	_, value, ok := strings.Cut(strings.TrimSpace(text), " nice ")
	if !ok {
		return 0, fmt.Errorf("%s is %q: there is no nice value in it", autogroup, text)
	}
	return strconv.Atoi(value)
}

func setAutogroup(nice int) error { return os.WriteFile(autogroup, []byte(strconv.Itoa(nice)), 0) }
