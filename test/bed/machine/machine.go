// Package machine has what tests must know of the machine they run on: which features its kernel
// has, how much slower than iron it is, and where programs lie that it would take too long to
// build. OnCPU is for measurements on it.
//
// Most tests need nothing of the kind. Those that do run on the kernels of distributions, in guests
// (`make -C test vm-kernel-test`), where all features are there and an emulated processor takes ten
// times as long.
package machine

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

// Variables of the environment.
const (
	noSkipVariable = "SLUICE_NO_SKIP" // "1": a feature that the kernel lacks fails the test that needs it
	slowerVariable = "SLUICE_SLOWER"  // how many times as slow as iron the machine is, 1 to 100
	binaryVariable = "SLUICE_BINARY"  // path of the daemon, built from this tree
)

// Binary is the path of a daemon that was built elsewhere, for tests that would build one; empty if
// there is none. The user who sets it must build it from this tree.
func Binary() string { return os.Getenv(binaryVariable) }

// Slower is a bound of time that was set on iron, as this machine needs it. It is for limits that
// stop an endless wait, not for durations that a test measures.
func Slower(d time.Duration) time.Duration { return time.Duration(float64(d) * factor()) }

var factor = sync.OnceValue(func() float64 {
	f, err := parseFactor(os.Getenv(slowerVariable))
	if err != nil {
		panic(err) // the user who set it reads this
	}
	return f
})

func parseFactor(text string) (float64, error) {
	if text == "" {
		return 1, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f >= 1 && f <= 100) {
		return 0, fmt.Errorf("%s is %q: it must be a number from 1 to 100", slowerVariable, text)
	}
	return f, nil
}
