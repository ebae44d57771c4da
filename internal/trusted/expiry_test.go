package trusted_test

import (
	"crypto/tls"
	"testing"
	"time"

	"sluice.dev/sluice/internal/trusted"
	"sluice.dev/sluice/test/bed/certs"
)

// TestEndsOf: the end of a chain's issuers is that of the first one that a client may need.
func TestEndsOf(t *testing.T) {
	const hour = time.Hour
	authority := func(of *certs.Authority, name string, left time.Duration) *certs.Authority {
		t.Helper()
		a, err := of.Below(name, left)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	root := authority(new(certs.Authority), "root", 9*hour)
	upper := authority(root, "upper", 5*hour)
	lower := authority(upper, "lower", 7*hour)
	stranger := authority(root, "stranger", -hour/2)
	namesake := authority(root, "upper", 2*hour) // with another key
	former := authority(root, "former", -2*hour)
	below := authority(former, "below", 4*hour)
	for name, c := range map[string]struct {
		by    *certs.Authority
		chain []*certs.Authority
		end   *certs.Authority // nil: none
	}{
		"alone": {lower, nil, nil}, "one": {lower, []*certs.Authority{lower}, lower},
		"two":               {lower, []*certs.Authority{lower, upper}, upper},
		"in another order":  {lower, []*certs.Authority{upper, lower}, upper},
		"root":              {lower, []*certs.Authority{lower, root}, lower},
		"unused":            {lower, []*certs.Authority{stranger, lower}, lower},
		"of the same name":  {lower, []*certs.Authority{lower, namesake}, lower},
		"ended before it":   {below, []*certs.Authority{below, former}, below},
		"only ended before": {former, []*certs.Authority{former}, nil},
	} {
		leaf := certs.Template("gw-a")
		leaf.NotAfter = time.Now().Add(3 * hour)
		of, _, err := c.by.Sign(leaf)
		if err != nil {
			t.Fatal(err)
		}
		chain := &tls.Certificate{Certificate: [][]byte{of.Raw}}
		for _, a := range c.chain {
			chain.Certificate = append(chain.Certificate, a.Certificate.Raw)
		}
		var want time.Time
		if c.end != nil {
			want = c.end.Certificate.NotAfter
		}
		got, err := trusted.EndsOf(chain)
		if err != nil || !got.Certificate.Equal(of.NotAfter) || !got.Issuers.Equal(want) {
			t.Errorf("%s: %v, %v; want %v and %v", name, got, err, of.NotAfter, want)
		}
	}
}
