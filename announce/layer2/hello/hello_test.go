package hello

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

var (
	keys    = Keys{[]byte(strings.Repeat("a", 32)), []byte(strings.Repeat("b", 32))}
	address = gocmp.Comparer(func(a, b netip.Addr) bool { return a == b })
)

func sample() *Hello {
	return &Hello{Name: "gateway-1", Joining: true, Incarnation: 1 << 60, Sequence: 7, Nonce: 9, Heard: []uint64{3, 4},
		Table: 5, Part: 1, Parts: 2, VIPs: []Entry{{VIP: netip.MustParseAddr("192.0.2.1"), Leaving: true},
			{VIP: netip.MustParseAddr("192.0.2.2"), LastResort: true},
			{VIP: netip.MustParseAddr("2001:db8::1"), Not: true}}}
}

// Any member with the key opens a sealed message, also with a key that no longer signs. Messages
// with any changed bit are rejected.
func TestSeal(t *testing.T) {
	t.Parallel()
	for _, h := range []*Hello{sample(), {Name: "n", Goodbye: true, Parts: 1},
		{Name: "n", Returning: true, Parts: 1}} {
		b := keys.Seal(h)
		for _, k := range []Keys{keys, {keys[1], keys[0]}} {
			got, refusal := k.Open(b)
			if diff := gocmp.Diff(h, got, address); refusal != "" || diff != "" {
				t.Errorf("%q, -want +got:\n%s", refusal, diff)
			}
		}
		if _, refusal := (Keys{keys[1]}).Open(b); refusal != Forged {
			t.Errorf("by another key: %q", refusal)
		}
		for i := range len(b) * 8 {
			bad := bytes.Clone(b)
			bad[i/8] ^= 1 << (i % 8)
			if _, refusal := keys.Open(bad); refusal != Forged {
				t.Errorf("bit %d changed: %q", i, refusal)
			}
		}
		for i := range b {
			if _, refusal := keys.Open(b[:i]); refusal != Forged {
				t.Errorf("%d bytes of it: %q", i, refusal)
			}
		}
	}
}

// Malformed messages with a valid HMAC have another version.
func TestVersion(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(b []byte) []byte{
		"magic":            func(b []byte) []byte { b[3] = '2'; return b },
		"unknown flag":     func(b []byte) []byte { b[4] |= 8; return b },
		"no name":          func(b []byte) []byte { b[5] = 0; return b },
		"part of no parts": func(b []byte) []byte { b[9] = 1; return b },
		"many nonces":      func(b []byte) []byte { b[10] = 255; return b },
		"more VIPs":        func(b []byte) []byte { b[13]++; return b },
		"fewer VIPs":       func(b []byte) []byte { b[13]--; return b },
		"reserved":         func(b []byte) []byte { b[15] = 1; return b },
		"family":           func(b []byte) []byte { b[48+9+16] = 5; return b },
		"short":            func(b []byte) []byte { return b[:20] },
		"mapped": func(b []byte) []byte {
			a := netip.MustParseAddr("::ffff:192.0.2.1").As16()
			return append(b[:len(b)-16], a[:]...)
		},
	} {
		b := change(sample().marshal())
		if _, refusal := keys.Open(append(b, sum(keys[0], b)...)); refusal != Version {
			t.Errorf("%s: %q", name, refusal)
		}
	}
}

// The largest message fits into a frame of IPv6's minimum MTU.
func TestSize(t *testing.T) {
	t.Parallel()
	for _, a := range []string{"10.0.0.1", "2001:db8::1"} {
		e := Entry{VIP: netip.MustParseAddr(a)}
		h := Hello{Name: strings.Repeat("n", MaxName), Heard: make([]uint64, MaxHeard), Parts: 1,
			VIPs: slices.Repeat([]Entry{e}, MaxBytes/e.Bytes())}
		b := keys.Seal(&h)
		if len(b) > 1280-14 {
			t.Errorf("a message of %d bytes", len(b))
		}
		if _, refusal := keys.Open(b); refusal != "" {
			t.Errorf("%q", refusal)
		}
	}
}

func TestReadKeys(t *testing.T) {
	t.Parallel()
	k := strings.Repeat("k", 32)
	for text, want := range map[string]string{
		"": "the file has no key", "\n \n": "the file has no key", "secret": "line 1 has 6 characters",
		k + "\nsecret\n": "line 2",
	} {
		if _, err := ReadKeys([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	got, err := ReadKeys(fmt.Appendf(nil, "%s\n\n %sx \n", k, k))
	if err != nil || !got.Equal(Keys{[]byte(k), []byte(k + "x")}) {
		t.Errorf("%q, %v", got, err)
	}
}

// Any bytes are parsed without a panic, and a parsed message is encoded to the same bytes.
func FuzzOpen(f *testing.F) {
	f.Add(sample().marshal())
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, ok := unmarshal(b); ok && !bytes.Equal(h.marshal(), b) {
			t.Errorf("%+v is written as %x, and was read from %x", h, h.marshal(), b)
		}
	})
}
