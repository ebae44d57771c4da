package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// read returns what holds for all threads: what one has not, is not there; a capability that
// one has, is.
func read() (*State, error) {
	files, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil {
		return nil, err
	}
	s := &State{NoNewPrivs: true, Seccomp: true}
	var effective uint64
	for _, file := range files {
		text, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			continue // the thread has ended
		}
		if err != nil {
			return nil, err
		}
		field := func(name string) string {
			_, rest, _ := strings.Cut(string(text), "\n"+name+":")
			line, _, _ := strings.Cut(rest, "\n")
			return strings.TrimSpace(line)
		}
		bits, err := strconv.ParseUint(field("CapEff"), 16, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: CapEff: %w", file, err)
		}
		effective |= bits
		s.NoNewPrivs = s.NoNewPrivs && field("NoNewPrivs") == "1"
		s.Seccomp = s.Seccomp && field("Seccomp") == strconv.Itoa(unix.SECCOMP_MODE_FILTER)
		s.Threads++
	}
	if s.Threads == 0 {
		return nil, fmt.Errorf("/proc/self/task shows no thread")
	}
	for bit := range uint(64) {
		if effective&(1<<bit) != 0 {
			s.Capabilities = append(s.Capabilities, nameOf(bit))
		}
	}
	return s, nil
}

func nameOf(bit uint) string {
	for _, c := range append([]Capability{sysAdmin}, Kept...) {
		if c.Bit == bit {
			return c.Name
		}
	}
	return strconv.FormatUint(uint64(bit), 10)
}
