package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"time"
)

// authority signs the certificates of the API server and of users.
type authority struct {
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
	pem         []byte
}

// validity is how long certificates and tokens are good for: longer than any run.
const validity = 24 * time.Hour

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("cluster: make a key: %w", err)
	}
	template, err := certificate("sluice-cluster")
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("cluster: make a certificate authority: %w", err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("cluster: make a certificate authority: %w", err)
	}
	return &authority{key: key, certificate: parsed, pem: encode("CERTIFICATE", der)}, nil
}

// certificate is what all certificates have in common. Namespaces share the machine's clock;
// certificates are valid from one hour ago because somebody may set that clock back.
func certificate(name string, groups ...string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("cluster: make a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name, Organization: groups},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(validity),
	}, nil
}

// server makes the API server's certificate, for every name that it is reached by: loopback, the
// kubernetes Service's, and an address of its host, if there is a valid one.
func (a *authority) server(address netip.Addr) (certPEM, keyPEM []byte, err error) {
	template, err := certificate("kube-apiserver")
	if err != nil {
		return nil, nil, err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	service := netip.MustParsePrefix(ServiceRange4).Addr().Next() // the kubernetes Service has the first
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, service.AsSlice()}
	if address.IsValid() {
		template.IPAddresses = append(template.IPAddresses, address.AsSlice())
	}
	return a.sign(template)
}

// client makes a user's certificate: the name is the user's, organizations are groups
// (Kubernetes: Authenticating, X509 client certificates).
func (a *authority) client(name string, groups ...string) (certPEM, keyPEM []byte, err error) {
	template, err := certificate(name, groups...)
	if err != nil {
		return nil, nil, err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.sign(template)
}

func (a *authority) sign(template *x509.Certificate) (certPEM, keyPEM []byte, err error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("cluster: sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	return encode("CERTIFICATE", der), keyPEM, nil
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("cluster: make a key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("cluster: make a key: %w", err)
	}
	return key, encode("EC PRIVATE KEY", der), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
