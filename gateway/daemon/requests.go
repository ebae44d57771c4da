package daemon

import (
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"

	"sluice.dev/sluice/gateway/handover"
	"sluice.dev/sluice/serve/status"
)

// requests records the results of a waiting process's requests for a hand-over. One goroutine
// makes the requests; others read ready and view.
type requests struct {
	refusals int  // in a row; a refusal passes with the end of the running process
	able     bool // nothing is known that would keep this process from starting after that
	// ready: the supervisor of this process may end the running one.
	ready atomic.Bool
	view  atomic.Pointer[status.TakeOverView] // nil before the first request
}

// readyWhenRefused is how often in a row the running process must have refused to hand over before
// the waiting one is ready. With the pauses between requests it takes a quarter of a minute.
const readyWhenRefused = 5

// note records a request that failed with err. able returns why this process could not start; note
// calls it if that is not known. The process becomes ready only if the end of the running one
// would help: not if it could not start then, and not if its version has failed to take over.
func (r *requests) note(err error, able func() error) (refused []string, unable error) {
	var itself *handover.UnableError
	var refusal *handover.RefusedError
	switch {
	case errors.As(err, &itself):
		unable, r.able = itself.Err, false
	case errors.As(err, &refusal):
		refused = refusal.Reasons
	default:
		refused = []string{err.Error()}
	}
	if refusal != nil && refusal.Barred {
		r.refusals = 0
	} else if unable == nil {
		r.refusals++
		if !r.able {
			unable = able()
			r.able = unable == nil
		}
	}
	r.ready.Store(unable == nil && r.refusals >= readyWhenRefused)
	return refused, unable
}

// noteFailed is note that also writes the log and the status.
func (r *requests) noteFailed(log *slog.Logger, err error, able func() error) {
	before := r.view.Load()
	if before == nil {
		before = &status.TakeOverView{}
	}
	refused, unable := r.note(err, able)
	v := &status.TakeOverView{Refused: refused, Asked: before.Asked + 1}
	if len(refused) > 0 && !slices.Equal(before.Refused, refused) {
		log.Warn("the running process does not hand over: this process asks again, and starts when the running one "+
			"has ended", "why", refused)
	}
	if unable != nil {
		if v.Unable = unable.Error(); v.Unable != before.Unable {
			log.Error("this process can neither take over nor start after the running one has ended; it keeps trying",
				"error", unable)
		}
	}
	r.view.Store(v)
}
