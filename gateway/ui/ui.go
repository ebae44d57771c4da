// Package ui serves a page about a running gateway to the browser of its operator.
//
//	browser ──HTTP, loopback──▶ Server ──status.Client──▶ the gateway's socket
//
// The page is embedded: HTML, a style sheet and modules of JavaScript (directory page), without a
// build step and without anything from another host. It requests the status API's answers as JSON,
// and shows all their strings as text, never as HTML: tenants choose names, annotations and
// messages.
//
// Any local user, and any pod in the host's network, can connect to a port of the loopback, while
// the status socket has an owner and a mode. So all paths begin with a secret of this process,
// which only the printed URL has. A request must also name a loopback address as its host, so that
// a page of another site cannot reach the server by a DNS name of its own (DNS rebinding), and must
// not come from a page of another origin.
package ui

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sluice.dev/sluice/serve/status"
)

//go:embed page
var files embed.FS

// Server serves the page, and answers its requests.
type Server struct {
	client *status.Client
	secret string // first element of all paths
	now    func() time.Time
	http   http.Server

	summed sums
}

// New returns a server that asks a gateway by its client.
func New(client *status.Client) (*Server, error) {
	page, err := fs.Sub(files, "page")
	if err != nil {
		return nil, err
	}
	s := &Server{client: client, secret: rand.Text(), now: time.Now}
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServerFS(page))
	for path, answer := range s.answers() {
		mux.HandleFunc("/api/"+path, func(w http.ResponseWriter, r *http.Request) {
			began := s.now()
			v, err := answer(r)
			s.reply(w, v, err, began)
		})
	}
	s.http = http.Server{Handler: s.guard(http.StripPrefix("/"+s.secret, mux)), MaxHeaderBytes: 1 << 14,
		ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	return s, nil
}

// ParseAddress parses an address and port of the loopback; port 0 is any free one.
func ParseAddress(text string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(text)
	if err != nil {
		return a, errors.New("write an address and port such as 127.0.0.1:9475 or [::1]:0")
	}
	if !a.Addr().Unmap().IsLoopback() {
		return a, fmt.Errorf("%v is not a loopback address, and the page has neither users nor TLS: listen on "+
			"127.0.0.1, and reach it from elsewhere by ssh -L or kubectl port-forward", a.Addr())
	}
	return a, nil
}

// Listen opens a port that ParseAddress has returned.
func Listen(a netip.AddrPort) (net.Listener, error) {
	l, err := net.Listen("tcp", a.String())
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("another process listens on %v: give another port, or 0 for any free one", a)
	}
	return l, err
}

// URL returns the address of the page at a listener, with the secret.
func (s *Server) URL(l net.Listener) string { return fmt.Sprintf("http://%v/%s/", l.Addr(), s.secret) }

// Serve answers until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { s.http.Close() })()
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// policy allows the page its own files and answers, no inline code, no forms and no frames, and
// makes the browser refuse to parse a text as HTML (Trusted Types).
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; " +
	"trusted-types 'none'"

// guard passes on GET requests of the page itself.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if code, why := s.refuse(r); code != 0 {
			http.Error(w, why, code)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// refuse returns the status and the reason to refuse a request; 0 if it may pass.
func (s *Server) refuse(r *http.Request) (code int, why string) {
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	switch {
	case r.Method != http.MethodGet:
		return http.StatusMethodNotAllowed, "sluice ui only reads: it answers GET alone"
	case !loopbackHost(r.Host):
		return http.StatusForbidden, "sluice ui answers under loopback names alone: open it as 127.0.0.1, [::1] or " +
			"localhost"
	case site != "" && site != "same-origin" && site != "none", origin != "" && origin != "http://"+r.Host:
		return http.StatusForbidden, "sluice ui answers no other site: copy its URL into the address bar"
	}
	first, _, under := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if subtle.ConstantTimeCompare([]byte(first), []byte(s.secret)) != 1 || !under {
		return http.StatusNotFound, "open the URL that `sluice ui` printed at its start: it ends in a secret"
	}
	return 0, ""
}

// loopbackHost reports whether the host of a request, with a port or without, is localhost or a
// loopback address.
func loopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || err == nil && a.Unmap().IsLoopback()
}

// Headers of answers: their time in seconds since 1970, which rates need, and for how many
// milliseconds the gateway worked on them, by which the page waits before it asks again.
const (
	answeredAt = "Sluice-Time"
	took       = "Sluice-Took"
)

// requestError is an error that the query causes.
type requestError struct{ error }

// reply writes an answer, or why there is none: {"error": "..."}.
func (s *Server) reply(w http.ResponseWriter, v any, err error, began time.Time) {
	code := http.StatusOK
	if err != nil {
		code = http.StatusBadGateway
		var wrong requestError
		if errors.As(err, &wrong) {
			code = http.StatusBadRequest
		}
		v = map[string]string{"error": err.Error()}
	}
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	now := s.now()
	w.Header().Set(answeredAt, strconv.FormatFloat(float64(now.UnixMicro())/1e6, 'f', 6, 64))
	w.Header().Set(took, strconv.FormatInt(now.Sub(began).Milliseconds(), 10))
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n')) // an error means that the browser has gone
}
