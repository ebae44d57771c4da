package web

import (
	"container/list"
	"net"
	"net/http"
	"sync"
)

// Limit bounds the connections of one or more servers together. If there is one too many the oldest
// is closed, so that health checks are answered also while other clients hold idle connections
// open. The zero Limit is not usable; see NewLimit.
type Limit struct {
	most int

	mu    sync.Mutex // guards what follows
	order list.List  // of net.Conn, the oldest first
	at    map[net.Conn]*list.Element
}

// NewLimit returns a Limit of most connections.
func NewLimit(most int) *Limit {
	return &Limit{most: most, at: map[net.Conn]*list.Element{}}
}

// note is a http.Server's ConnState hook. That calls it for a new connection before it
// accepts the next, so a server never has more than the limit and those that are closing.
func (l *Limit) note(c net.Conn, s http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch s {
	case http.StateNew:
		l.at[c] = l.order.PushBack(c)
		if len(l.at) > l.most {
			oldest := l.order.Front().Value.(net.Conn)
			l.forget(oldest)
			_ = oldest.Close() // its server's read or write fails, and ends it
		}
	case http.StateClosed, http.StateHijacked:
		l.forget(c)
	}
}

// forget may be called twice for a connection: by the limit and by its end.
func (l *Limit) forget(c net.Conn) {
	if e := l.at[c]; e != nil {
		l.order.Remove(e)
		delete(l.at, c)
	}
}

// Len counts the connections.
func (l *Limit) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.at)
}
