package daemon

import (
	"errors"
	"log/slog"
	"net/http"
	"sync"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/internal/unixsocket"
	"sluice.dev/sluice/serve/status"
)

// readers is the status socket for users who may only read. The gateway forwards without it.
//
// A successor makes a socket of its own, before it confines itself, and puts it in the place of the
// predecessor's when it serves. So the configuration of the socket may change with each process.
type readers struct {
	socket *unixsocket.Shared // nil: there is none
	server *status.Server     // nil until it is served
	path   string
	err    error // why there is none
}

// listen makes the socket, if there shall be one.
func (r *readers) listen(c *config.Configuration, log *slog.Logger) {
	if !c.Readers.Enabled() {
		return
	}
	r.path = c.Readers.Socket
	gid, err := c.Readers.GroupID()
	if err == nil {
		r.socket, err = unixsocket.Share(r.path, gid)
	}
	r.note(err, log)
}

// serve answers on the socket, and gives it its path.
func (r *readers) serve(g status.Gateway, full string, group *sync.WaitGroup, log *slog.Logger) {
	if r.socket == nil {
		return
	}
	r.server = limited(status.NewReadServer(g, log, full))
	group.Go(func() {
		if err := r.server.Serve(r.socket); err != nil && !errors.Is(err, http.ErrServerClosed) {
			log.Error("status socket for readers", "error", err)
		}
	})
	r.note(r.socket.Publish(), log)
}

func (r *readers) note(err error, log *slog.Logger) {
	if r.err = err; err != nil {
		log.Warn("users of readers.group cannot read the status", "socket", r.path, "error", err)
	}
}

// close removes a socket that was not served. The server has removed one that was.
func (r *readers) close() {
	if r.socket != nil && r.server == nil {
		_ = r.socket.Close()
	}
}

// conditions describe the socket if it could not be made.
func (r *readers) conditions() []status.ConditionView {
	if r.err == nil {
		return nil
	}
	return []status.ConditionView{status.Warning(status.ReadersCondition, "users of readers.group cannot read "+
		"the status: "+r.err.Error())}
}
