package web

import (
	"container/list"
	"net"
	"net/http"
	"sync"
)

// Limit bounds the connections of one or more servers together. Above the limit the oldest
// connection is closed, so that health checks get an answer while other clients hold idle
// connections open. The zero Limit is not usable; see NewLimit.
type Limit struct {
	most int

	mu    sync.Mutex // guards the fields below
	order list.List  // of net.Conn, the oldest first
	at    map[net.Conn]*list.Element
}

// NewLimit returns a Limit of most connections.
func NewLimit(most int) *Limit {
	return &Limit{most: most, at: map[net.Conn]*list.Element{}}
}

// Note is an http.Server's ConnState hook. The server calls it for a new connection before it
// accepts the next, so a server never exceeds the limit, apart from connections that are closing.
func (l *Limit) Note(c net.Conn, s http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch s {
	case http.StateNew:
		l.at[c] = l.order.PushBack(c)
		if len(l.at) > l.most {
			oldest := l.order.Front().Value.(net.Conn)
			l.forget(oldest)
			_ = oldest.Close() // then its server's read or write fails and the server ends it
		}
	case http.StateClosed, http.StateHijacked:
		l.forget(c)
	}
}

// forget removes a connection. It may be called twice for one: by the limit and at its end.
func (l *Limit) forget(c net.Conn) {
	if e := l.at[c]; e != nil {
		l.order.Remove(e)
		delete(l.at, c)
	}
}

// Len returns the number of connections.
func (l *Limit) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.at)
}
