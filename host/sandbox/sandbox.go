// Package sandbox drops the rights that the daemon does not need after its start, so that an
// attacker who takes it over through a packet or an object has only the rights that forwarding
// needs:
//
//	no_new_privs ─► Landlock ─► capabilities ─► seccomp      each for all threads
//	                (files)     (the needed)    (system calls)
//
// The order matters. Landlock and seccomp need no_new_privs where CAP_SYS_ADMIN is missing, and
// the filter, which comes last, refuses the calls that made the other three.
//
// The remaining rights last for the whole life of the process, because all steps of the start
// happen again: a device comes back and is bound again, programs are loaded, neighbours are
// written, files are read. Threads that are made later inherit the restrictions, which only a new
// process can leave.
package sandbox

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// Config has the rights that the daemon still needs.
type Config struct {
	// Mounts: the daemon will unmount file systems at its end, or mounts a sysfs for itself. Then
	// it keeps CAP_SYS_ADMIN, and there is no Landlock, which forbids all changes of mounts.
	Mounts bool
	// Files is what may be opened. If nil, there is no Landlock.
	Files *Files
}

// State has the restrictions in force, as read from the kernel.
type State struct {
	Capabilities []string // effective, of all threads together
	NoNewPrivs   bool
	Seccomp      bool
	Landlock     bool
	LandlockWhy  string // why there is no Landlock
	Threads      int    // that were looked at
}

// Enter drops the rights that c does not name, for all threads, and returns the restrictions in
// force. After an error the process may have dropped a part.
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
