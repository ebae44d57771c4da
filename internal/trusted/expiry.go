package trusted

import (
	"crypto/tls"
	"crypto/x509"
	"time"
)

// Expiry returns when the first certificate of a chain ends.
func Expiry(chain *tls.Certificate) (first time.Time, err error) {
	for _, der := range chain.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return first, err
		}
		if first.IsZero() || c.NotAfter.Before(first) {
			first = c.NotAfter
		}
	}
	return first, nil
}
