package config

import (
	"errors"
	"fmt"
)

// The gateway runs on Linux 6.12 and newer: the oldest release on which it is tested (make -C
// test vm-test-full).
const oldestMajor, oldestMinor = 6, 12

// ErrKernelRelease is wrapped by CheckKernel's error if a release cannot be parsed. The kernel may
// be new enough.
var ErrKernelRelease = errors.New("cannot be understood")

// CheckKernel returns an error if the gateway does not run on a kernel, by its release in the form
// of uname -r.
func CheckKernel(release string) error {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("kernel release %q %w: make sure that it is Linux %d.%d or newer", release, ErrKernelRelease,
			oldestMajor, oldestMinor)
	}
	if major > oldestMajor || major == oldestMajor && minor >= oldestMinor {
		return nil
	}
	return fmt.Errorf("this node runs Linux %s, but Sluice needs %d.%d or newer: it was not tested on older kernels, "+
		"and kernels before 6.6 "+
		"have no TCX programs, which redirect replies of endpoints on this node: boot a newer kernel", release,
		oldestMajor, oldestMinor)
}
