package peers

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync"

	"sluice.dev/sluice/internal/trusted"
)

// Files are PEM files. They are read for each handshake, so they may be replaced at any time.
type Files struct {
	Certificate string // of this gateway: for server and client, with its name as a DNS name
	Key         string
	Authorities string // certificates of the authorities that sign members' certificates
}

// identity is the content of Files.
type identity struct {
	certificate tls.Certificate
	authorities *x509.CertPool
}

// certificates reads Files. Two of the files may belong to different certificates while they are
// replaced: then the content from before is used.
type certificates struct {
	files  Files
	failed func(error) // is called with the error of such a reading

	mu   sync.Mutex
	last *identity
}

func (c *certificates) current() (*identity, error) {
	id, err := c.files.read()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.last = id
	case c.last == nil:
		return nil, err
	default:
		c.failed(fmt.Errorf("the certificate from before is used: %w", err))
	}
	return c.last, nil
}

func (f Files) read() (*identity, error) {
	var pem [3][]byte
	for i, name := range [...]string{f.Certificate, f.Key, f.Authorities} {
		b, err := trusted.Read(name)
		if err != nil {
			return nil, err
		}
		pem[i] = b
	}
	pair, err := tls.X509KeyPair(pem[0], pem[1])
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", f.Certificate, f.Key, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem[2]) {
		return nil, fmt.Errorf("%s has no certificate", f.Authorities)
	}
	return &identity{pair, pool}, nil
}

// client returns the configuration of a connection to a peer. The caller sets ServerName.
func (i *identity) client() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{i.certificate}, RootCAs: i.authorities,
	}
}

// server returns the configuration of connections from peers.
func (i *identity) server(peers []Peer) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{i.certificate},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: i.authorities,
		SessionTicketsDisabled: true, // each connection is verified by the present files
		VerifyConnection: func(s tls.ConnectionState) error {
			_, err := peerOf(s, peers)
			return err
		},
	}
}

// peerOf returns the peer whose name a verified certificate has.
func peerOf(s tls.ConnectionState, peers []Peer) (found Peer, err error) {
	if len(s.VerifiedChains) == 0 {
		return found, errors.New("no verified certificate")
	}
	leaf := s.VerifiedChains[0][0]
	var names []string
	for _, p := range peers {
		if leaf.VerifyHostname(p.Name) == nil {
			found, names = p, append(names, p.Name)
		}
	}
	switch len(names) {
	case 0:
		return found, fmt.Errorf("the certificate is of %s, which is no member of the group",
			strings.Join(leaf.DNSNames, ", "))
	case 1:
		return found, nil
	}
	return found, fmt.Errorf("the certificate is of %d members, %s: each needs one of its own", len(names),
		strings.Join(names, ", "))
}
