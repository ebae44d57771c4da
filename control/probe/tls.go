package probe

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"time"

	"sluice.dev/sluice/control/objects"
)

// maxSessions bounds the TLS sessions that are kept, maxSession the bytes of one.
const maxSessions, maxSession = 1024, 4 << 10

// sessions keeps TLS sessions, so that the next check of an endpoint takes no key of its
// certificate. Certificates are not verified, so a session hides nothing that would be found
// without it. A server gets none of another Service's sessions: the key has the namespace, the
// address and the name.
type sessions struct {
	cache tls.ClientSessionCache
}

// sessionKey implements tls.ClientSessionCache for one endpoint.
type sessionKey struct {
	cache tls.ClientSessionCache
	key   string
}

// Get implements tls.ClientSessionCache.
func (s sessionKey) Get(string) (*tls.ClientSessionState, bool) { return s.cache.Get(s.key) }

// Put implements tls.ClientSessionCache. It does not keep a session that is larger than maxSession.
func (s sessionKey) Put(_ string, session *tls.ClientSessionState) {
	if session != nil {
		ticket, state, err := session.ResumptionState()
		if err != nil || state == nil {
			return
		}
		if b, err := state.Bytes(); err != nil || len(ticket)+len(b) > maxSession {
			return
		}
	}
	s.cache.Put(s.key, session)
}

// Processor time of a handshake beyond endpointhealth.CheckCost, which is for a resumed session (go
// test -bench Cost ./control/probe): with a key and an exchange that have fast code in Go, and with
// others, such as P-521.
const (
	handshakeCost     = time.Millisecond
	slowHandshakeCost = 4500 * time.Microsecond
)

// handshake begins TLS on a connection. extra is the processor time beyond
// endpointhealth.CheckCost.
func (s *sessions) handshake(
	c *bounded, namespace string, to netip.AddrPort, check *objects.Check,
) (t *tls.Conn, extra time.Duration, err error) {
	name := serverName(check.Host)
	t = tls.Client(c, &tls.Config{
		InsecureSkipVerify: true, // there is no name that an endpoint's certificate must have
		ServerName:         name,
		ClientSessionCache: sessionKey{s.cache, fmt.Sprintf("%s %v %s", namespace, to, name)},
		// Hybrids with ML-KEM cost more, and nothing that a check sends is secret.
		CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384, tls.CurveP521},
	})
	c.most.Store(maxHandshake)
	err = t.Handshake()
	if err != nil && c.bytes.Load() >= maxHandshake {
		err = fmt.Errorf("more than %d bytes of TLS handshake", maxHandshake)
	}
	c.most.Store(maxBytes)
	switch state := t.ConnectionState(); {
	case err != nil && c.bytes.Load() == 0, err == nil && state.DidResume:
	case err == nil && fast(&state):
		extra = handshakeCost
	default:
		extra = slowHandshakeCost
	}
	return t, extra, err
}

// fast reports whether a handshake took little processor time.
func fast(s *tls.ConnectionState) bool {
	if s.CurveID != tls.X25519 && s.CurveID != tls.CurveP256 || len(s.PeerCertificates) > 4 {
		return false
	}
	switch key := s.PeerCertificates[0].PublicKey.(type) {
	case *ecdsa.PublicKey:
		return key.Curve == elliptic.P256()
	case *rsa.PublicKey:
		return key.Size() <= 4096/8
	case ed25519.PublicKey:
		return true
	}
	return false
}

// serverName returns a host without its port.
func serverName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return host
}

func newSessions() *sessions { return &sessions{tls.NewLRUClientSessionCache(maxSessions)} }
