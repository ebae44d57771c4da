// Package sandbox gives up what the daemon does not need once it is set up, so that somebody who
// takes it over by a packet or an object gets no more than what forwards packets:
//
//	no_new_privs ─► Landlock ─► capabilities ─► seccomp      each for all threads
//	                (files)     (the needed)    (system calls)
//
// The order matters. Landlock and seccomp need no_new_privs where CAP_SYS_ADMIN is missing, and
// the filter, which comes last, refuses the calls that made the other three.
//
// What it keeps is for the whole life of the process, because everything of the start happens
// again: a device comes back and is bound again, programs are loaded, neighbours are written, files
// are read. Threads that are made later inherit it all. There is no way back but a new process.
package sandbox

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// Config is what the daemon still needs.
type Config struct {
	// Mounts: the daemon unmounts at its end what it has mounted, or mounts a sysfs for itself.
	// It keeps CAP_SYS_ADMIN then, and there is no Landlock, which allows no change of mounts.
	Mounts bool
	// Files is what may be opened. If nil, there is no Landlock.
	Files *Files
}

// State is what is in force, as the kernel shows it.
type State struct {
	Capabilities []string // effective, of all threads together
	NoNewPrivs   bool
	Seccomp      bool
	Landlock     bool
	LandlockWhy  string // why there is no Landlock
	Threads      int    // that were looked at
}

// Enter gives up what c does not name, for all threads, and returns what is then in force. After an
// error the process may have given up a part.
func Enter(c Config) (*State, error) {
	if _, _, errno := psx.Syscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return nil, fmt.Errorf("set no_new_privs: %w", errno)
	}
	why, err := restrictFiles(&c)
	if err != nil {
		return nil, err
	}
	if err := keepCapabilities(needed(&c)); err != nil {
		return nil, err
	}
	if err := loadFilter(&c); err != nil {
		return nil, err
	}
	s, err := read()
	if err != nil {
		return nil, fmt.Errorf("read what is in force: %w", err)
	}
	s.Landlock, s.LandlockWhy = why == "", why
	return s, s.check(needed(&c))
}

// check returns an error if a thread got away.
func (s *State) check(kept []Capability) error {
	if !s.NoNewPrivs || !s.Seccomp {
		return fmt.Errorf("not every thread is confined: no_new_privs %t, seccomp %t", s.NoNewPrivs, s.Seccomp)
	}
	for _, name := range s.Capabilities {
		if !slices.ContainsFunc(kept, func(k Capability) bool { return k.Name == name }) {
			return fmt.Errorf("a thread still has CAP_%s", name)
		}
	}
	return nil
}
