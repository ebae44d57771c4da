package announce

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"sluice.dev/sluice/control/pulse"
	"sluice.dev/sluice/internal/statefile"
	"sluice.dev/sluice/internal/trusted"
)

// stateVersion must change with the meaning of what is in the file.
const stateVersion = 1

// saved is what the next process has to know: what is announced, in case that it cannot ask the
// gateway. The file is on a tmpfs: after a start of the machine nothing is announced.
type saved struct {
	Version int         `json:"version"`
	VIPs    []pulse.VIP `json:"vips"`
}

// Resumes reports whether the process before announced something, by the file that it left: peers
// may have kept routes. A file that cannot be read is none.
func Resumes(path string) bool {
	vips, err := load(path)
	return err == nil && len(vips) > 0
}

func load(path string) ([]pulse.VIP, error) {
	text, err := trusted.ReadState(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var s saved
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if s.Version != stateVersion {
		return nil, fmt.Errorf("%s: version %d, this program has %d", path, s.Version, stateVersion)
	}
	return s.VIPs, nil
}

func store(path string, vips []pulse.VIP) error {
	if len(vips) == 0 {
		return statefile.Remove(path)
	}
	return statefile.Save(path, saved{stateVersion, vips})
}
