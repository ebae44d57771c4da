package peers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"sluice.dev/sluice/internal/trusted"
)

// Files are PEM files. They are read for each handshake, so they may be replaced at any time.
type Files struct {
	// Certificate is this gateway's, for server and client, with its name as a DNS name. Or it is
	// of an authority, and all gateways have the key: then each makes its own certificate.
	Certificate string
	Key         string
	Authorities string // certificates of the authorities that sign members' certificates
}

// identity is the content of Files.
type identity struct {
	certificate    tls.Certificate
	authorities    *x509.CertPool
	authoritiesEnd time.Time // the end of the last of them
}

// Ends returns when the certificate of the gateway with a name ends, and when the last authority
// that it trusts does: then it can open no stream. It returns an error if Files cannot be used.
func (f Files) Ends(name string) (own trusted.Ends, authorities time.Time, err error) {
	id, err := f.read(name)
	if err != nil {
		return own, authorities, err
	}
	own, err = trusted.EndsOf(&id.certificate)
	return own, id.authoritiesEnd, err
}

// certificates reads Files. Two of the files may belong to different certificates while they are
// replaced: then the content from before is used.
type certificates struct {
	files  Files
	name   string      // of this gateway
	failed func(error) // is called with the error of such a reading

	mu   sync.Mutex
	last *identity
}

func (c *certificates) current() (*identity, error) {
	id, err := c.files.read(c.name)
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

// read returns the identity of the gateway with a name.
func (f Files) read(name string) (*identity, error) {
	var text [3][]byte
	for i, file := range [...]string{f.Certificate, f.Key, f.Authorities} {
		b, err := trusted.Read(file)
		if err != nil {
			return nil, err
		}
		text[i] = b
	}
	pair, err := tls.X509KeyPair(text[0], text[1])
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", f.Certificate, f.Key, err)
	}
	if pair.Leaf.IsCA && pair.Leaf.VerifyHostname(name) != nil {
		if pair, err = issue(&pair, name); err != nil {
			return nil, fmt.Errorf("%s: a certificate for %s cannot be signed: %w", f.Certificate, name, err)
		}
	}
	id := &identity{certificate: pair, authorities: x509.NewCertPool()}
	if id.authoritiesEnd = id.trust(text[2]); id.authoritiesEnd.IsZero() {
		return nil, fmt.Errorf("%s has no certificate", f.Authorities)
	}
	return id, nil
}

// trust adds the certificates of a PEM file to authorities, and returns when the last of them ends;
// the zero time if there is none.
func (i *identity) trust(text []byte) (last time.Time) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if block.Type != "CERTIFICATE" || err != nil {
			continue
		}
		i.authorities.AddCert(c)
		if c.NotAfter.After(last) {
			last = c.NotAfter
		}
	}
	return last
}

// issue makes a certificate for a gateway, with a new key, as long valid as that of the authority.
func issue(authority *tls.Certificate, name string) (c tls.Certificate, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, err
	}
	of := &x509.Certificate{
		DNSNames: []string{name}, NotBefore: authority.Leaf.NotBefore, NotAfter: authority.Leaf.NotAfter,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, of, authority.Leaf, key.Public(), authority.PrivateKey)
	if err != nil {
		return c, err
	}
	return tls.Certificate{Certificate: append([][]byte{der}, authority.Certificate...), PrivateKey: key}, nil
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
