package launch

import "sluice.dev/sluice/test/bed/scratch"

// Sweep removes the directories of gateways whose process is gone without a Close,
// and returns their paths.
func Sweep() ([]string, error) { return sweep(scratch.Tmpfs()) }

func sweep(parent string) (removed []string, err error) {
	return scratch.Sweep(parent, directoryPrefix, removeDirectory)
}
