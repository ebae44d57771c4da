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

// stateVersion must change with the meaning of what is in the file.
const stateVersion = 1

// saved is what the next process has to know: what is announced, in case that it cannot ask the
// gateway, and what pools said, in case that it cannot read them. The file is on a tmpfs: after a
// start of the machine nothing is announced, and a pool that cannot be read has nothing.
type saved struct {
	Version int         `json:"version"`
	VIPs    []pulse.VIP `json:"vips"`
	// Interfaces are those of the gateway (World), and not in files of programs of before.
	Interfaces []string `json:"interfaces,omitempty"`
	// Pools are not in files of programs of before, and are nothing to them.
	Pools []kinds.Said `json:"pools,omitempty"`
	// Hold is not in files of programs of before either: they had none of it used.
	Hold HoldUsed `json:"hold,omitzero"`
}

// Resumes reports whether the process before announced something, by the file that it left: peers
// may have kept routes. A file that cannot be read is none.
func Resumes(path string) bool {
	s, err := load(path)
	return err == nil && len(s.VIPs) > 0
}

// load returns the zero value if there is no file, and with an error.
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

// saveHold leaves for the next process how much of the hold is used, and the rest as it was.
func (l *Loop) saveHold(now time.Time) {
	if hold := l.watch.Used(now); hold != l.saved.Hold {
		l.store(saved{VIPs: l.saved.VIPs, Interfaces: l.saved.Interfaces, Pools: l.saved.Pools, Hold: hold})
	}
}

// store writes the file. One that cannot be written is tried again with the next step.
func (l *Loop) store(s saved) bool {
	if err := store(l.config.State, s); err != nil {
		l.config.Log.Warn("what is announced is not known to the next process", "error", err)
		return false
	}
	l.saved = s
	return true
}
