// Package certs makes certificates for the gateways of a group.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// Names of the files that Write makes.
const (
	CertFile = "tls.crt"
	KeyFile  = "tls.key"
	CAFile   = "ca.crt"
)

// Authority signs certificates.
type Authority struct {
	Certificate *x509.Certificate // its own
	key         *ecdsa.PrivateKey
}

// New returns an authority whose certificates are valid for an hour.
func New() (*Authority, error) { return NewFor(time.Hour) }

// NewFor returns an authority whose own certificate is valid for a time.
func NewFor(left time.Duration) (*Authority, error) { return new(Authority).Below("authority", left) }

// Below returns an authority with a name whose certificate this one signs, or its own key if it has
// none.
func (a *Authority) Below(name string, left time.Duration) (below *Authority, err error) {
	t := Template(name)
	t.NotAfter = time.Now().Add(left)
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign
	below = &Authority{}
	below.Certificate, below.key, err = a.Sign(t)
	return below, err
}

// Template returns the certificate of a gateway with these DNS names, to be signed.
func Template(names ...string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

// Sign signs with the authority's key, or with the certificate's own if the authority has none yet.
// It returns the certificate and its key.
func (a *Authority) Sign(c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	parent, by := a.Certificate, a.key
	if parent == nil {
		parent, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), by)
	if err != nil {
		return nil, nil, err
	}
	signed, err := x509.ParseCertificate(der)
	return signed, key, err
}

// Write makes the certificate of a gateway in a directory, with its key and the authority's
// certificate.
func (a *Authority) Write(dir, name string) error { return a.WriteSigned(dir, Template(name), a) }

// WriteSigned signs a certificate, and writes it to a directory, with its key and the certificates
// of authorities to trust.
func (a *Authority) WriteSigned(dir string, c *x509.Certificate, trusted ...*Authority) error {
	signed, key, err := a.Sign(c)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	var authorities []byte
	for _, t := range trusted {
		authorities = append(authorities, encode("CERTIFICATE", t.Certificate.Raw)...)
	}
	for name, text := range map[string][]byte{
		CertFile: encode("CERTIFICATE", signed.Raw), KeyFile: encode("EC PRIVATE KEY", der), CAFile: authorities,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
