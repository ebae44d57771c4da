package config

import (
	"errors"
	"fmt"
)

// The oldest release of Linux that the gateway runs on is the oldest that it is tested on (make
// vm-test-full).
const oldestMajor, oldestMinor = 6, 12

// ErrKernelRelease is wrapped by CheckKernel's error if a release cannot be parsed: the kernel may
// be new enough.
var ErrKernelRelease = errors.New("cannot be understood")

// CheckKernel returns an error if the gateway does not run on a kernel, by its release as uname -r
// prints it.
func CheckKernel(release string) error {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("kernel release %q %w: make sure that it is Linux %d.%d or newer", release, ErrKernelRelease,
			oldestMajor, oldestMinor)
	}
	if major > oldestMajor || major == oldestMajor && minor >= oldestMinor {
		return nil
	}
	return fmt.Errorf("this node runs Linux %s, and Sluice needs %d.%d or newer: on older kernels it was not tested, "+
		"and those before 6.6 "+
		"have no TCX programs, which catch replies of endpoints on this node: boot a newer kernel", release,
		oldestMajor, oldestMinor)
}
