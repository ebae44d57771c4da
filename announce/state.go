package announce

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/announce/pulse"
	"sluice.dev/sluice/internal/statefile"
	"sluice.dev/sluice/internal/trusted"
)

// stateVersion must change when the meaning of the file's content changes.
const stateVersion = 1

// saved is the state for the next process: the announced VIPs, for the time until it has read the
// gateway's pulse, and the pools, for pools that it cannot read. The file is on a tmpfs: after a
// boot nothing is announced, and a pool that cannot be read has no addresses.
type saved struct {
	Version int         `json:"version"`
	VIPs    []pulse.VIP `json:"vips"`
	// Interfaces are the gateway's (World). Files of older versions do not have them.
	Interfaces []string `json:"interfaces,omitempty"`
	// Pools are missing in files of older versions, which ignore them.
	Pools []kinds.SavedPool `json:"pools,omitempty"`
	// Hold is missing in files of older versions: nothing is used then.
	Hold HoldUsed `json:"hold,omitzero"`
}

// Resumes reports whether the previous process announced VIPs, so that peers may have kept routes.
// It reads the saved file; false if that cannot be read.
func Resumes(path string) bool {
	s, err := load(path)
	return err == nil && len(s.VIPs) > 0
}

// load returns the zero value if there is no file, or with an error.
func load(path string) (saved, error) {
	text, err := trusted.ReadState(path)
	if errors.Is(err, fs.ErrNotExist) {
		return saved{}, nil
	}
	if err != nil {
		return saved{}, err
	}
	var s saved
	if err := json.Unmarshal(text, &s); err != nil {
		return saved{}, fmt.Errorf("%s: %w", path, err)
	}
	if s.Version != stateVersion {
		return saved{}, fmt.Errorf("%s: version %d, this program has %d", path, s.Version, stateVersion)
	}
	return s, nil
}

func store(path string, s saved) error {
	if len(s.VIPs)+len(s.Pools) == 0 && s.Hold == (HoldUsed{}) {
		return statefile.Remove(path)
	}
	s.Version = stateVersion
	return statefile.Save(path, s)
}

// saveHold saves the used part of the hold, and leaves the rest of the file as it was.
func (l *Loop) saveHold(now time.Time) {
	if hold := l.watch.Used(now); hold != l.saved.Hold {
		l.store(saved{VIPs: l.saved.VIPs, Interfaces: l.saved.Interfaces, Pools: l.saved.Pools, Hold: hold})
	}
}

// store writes the file. After an error, the next step tries again.
func (l *Loop) store(s saved) bool {
	if err := store(l.config.State, s); err != nil {
		l.config.Log.Warn("the state for the next process cannot be saved", "error", err)
		return false
	}
	l.saved = s
	return true
}
