package trusted

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"time"
)

// Ends has the times at which a certificate and its chain end.
type Ends struct {
	Certificate time.Time
	// Issuers is the end of the first issuer in the chain; the zero time if it has none that a
	// client may need. A client may know another path, so it may accept the certificate later, too.
	Issuers time.Time
}

// EndsOf returns the ends of a chain. It ignores what verifies nothing: certificates that did not
// issue one before them, roots, which clients have themselves, and issuers that had ended before
// the certificate began.
func EndsOf(chain *tls.Certificate) (e Ends, err error) {
	var list []*x509.Certificate
	for _, der := range chain.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return e, err
		}
		list = append(list, c)
	}
	e.Certificate = list[0].NotAfter
	of := list[0]
	for range list[1:] { // two issuers may have issued each other
		if of = issuerIn(list[1:], of); of == nil {
			break
		}
		if of.NotAfter.After(list[0].NotBefore) && (e.Issuers.IsZero() || of.NotAfter.Before(e.Issuers)) {
			e.Issuers = of.NotAfter
		}
	}
	return e, nil
}

// issuerIn returns the issuer of a certificate, the one that ends last; nil if it is a root or not
// in the list.
func issuerIn(list []*x509.Certificate, of *x509.Certificate) (issuer *x509.Certificate) {
	for _, c := range list {
		if bytes.Equal(c.RawSubject, of.RawIssuer) && !bytes.Equal(c.RawSubject, c.RawIssuer) &&
			(issuer == nil || c.NotAfter.After(issuer.NotAfter)) && of.CheckSignatureFrom(c) == nil {
			issuer = c
		}
	}
	return issuer
}
