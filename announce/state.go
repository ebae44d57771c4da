package announce

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
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
	// Node is the name of the own Node if it was read from an API server.
	Node string `json:"node,omitempty"`
}

// Resumes reports whether the previous process announced VIPs, so that peers may have kept routes.
// It reads the saved file; false if that cannot be read.
func Resumes(path string) bool {
	s, err := load(path)
	return err == nil && len(s.VIPs) > 0
}

// NodeSeen reports whether a previous process has read the Node with a name from an API server. It
// reads the saved file; false if that cannot be read.
func NodeSeen(path, name string) bool {
	s, err := load(path)
	return err == nil && s.Node == name && name != ""
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
	if len(s.VIPs)+len(s.Pools) == 0 && s.Hold == (HoldUsed{}) && s.Node == "" {
		return statefile.Remove(path)
	}
	s.Version = stateVersion
	return statefile.Save(path, s)
}

// stored is the file for the next process. Only the Loop's goroutine uses it.
type stored struct {
	path        string
	log         *slog.Logger
	saved       saved // the content
	savedAt     time.Time
	poolsDiffer bool   // pools may differ from saved
	vipsDiffer  bool   // VIPs may differ from saved
	node        string // as in saved
}

// saveEvery is the least time between two saves of changed VIPs. A new process reads the gateway's
// pulse before it announces a VIP; it only needs to know whether the previous one announced any.
const saveEvery = 10 * time.Second

// save saves the announced VIPs and the pools of a World, and the used part of the hold. vips are
// the pulse's, in the order of w.VIPs. It saves VIPs at once if their number changes from or to
// zero, or with last.
func (f *stored) save(now time.Time, last bool, hold HoldUsed, vips []pulse.VIP, w *World) {
	some := slices.ContainsFunc(w.VIPs, func(s *VIPVerdict) bool { return s.Grade != No })
	sameInterfaces := slices.Equal(w.Interfaces, f.saved.Interfaces)
	due := f.vipsDiffer && (last || now.Sub(f.savedAt) >= saveEvery) || !sameInterfaces
	if !f.poolsDiffer && !due && f.sameOthers(hold) && some == (len(f.saved.VIPs) > 0) {
		return
	}
	var announced []pulse.VIP
	for i, s := range w.VIPs {
		if s.Grade != No {
			announced = append(announced, vips[i])
		}
	}
	same := sameInterfaces &&
		slices.EqualFunc(announced, f.saved.VIPs, func(a, b pulse.VIP) bool { return a.Equal(&b) })
	if !f.poolsDiffer && f.sameOthers(hold) && same || f.write(saved{VIPs: announced, Interfaces: w.Interfaces,
		Pools: w.Set.SavedPools(), Hold: hold, Node: f.node}) {
		f.poolsDiffer, f.vipsDiffer, f.savedAt = false, false, now
	}
}

func (f *stored) sameOthers(hold HoldUsed) bool {
	return hold == f.saved.Hold && f.node == f.saved.Node
}

// saveOthers saves the used part of the hold and the Node, and leaves the rest of the file as it
// was.
func (f *stored) saveOthers(hold HoldUsed) {
	if !f.sameOthers(hold) {
		next := f.saved
		next.Hold, next.Node = hold, f.node
		f.write(next)
	}
}

// write replaces the file. After an error, the next step tries again.
func (f *stored) write(s saved) bool {
	if err := store(f.path, s); err != nil {
		f.log.Warn("the state for the next process cannot be saved", "error", err)
		return false
	}
	f.saved = s
	return true
}
