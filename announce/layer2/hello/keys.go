package hello

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
)

// RejectReason is why a message is not used; empty: it is used.
type RejectReason string

// Reasons of Open. Package members has more.
const (
	Forged  RejectReason = "forged"  // none of the keys matches its HMAC
	Version RejectReason = "version" // it is not a message of this version
)

// Keys are the keys that members share. The first one signs, and all of them verify. To replace a
// key, first append the new one on all members, then move it to the front.
type Keys [][]byte

// minKey is the length of the shortest key, in bytes: 128 bits in hexadecimal.
const minKey = 32

// ReadKeys parses a file with one key per line.
func ReadKeys(text []byte) (k Keys, err error) {
	n := 0
	for line := range bytes.Lines(text) {
		n++
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if len(line) < minKey {
			return nil, fmt.Errorf("the key in line %d has %d characters: must be %d or more, such as `openssl rand "+
				"-hex 32` writes", n, len(line), minKey)
		}
		k = append(k, bytes.Clone(line))
	}
	if len(k) == 0 {
		return nil, fmt.Errorf("the file has no key: write one of %d characters or more, such as `openssl rand -hex 32` "+
			"writes", minKey)
	}
	return k, nil
}

// Equal reports whether both have the same keys in the same order.
func (k Keys) Equal(o Keys) bool {
	return bytes.Equal(bytes.Join(k, []byte("\n")), bytes.Join(o, []byte("\n")))
}

// Seal returns the bytes of a signed message.
func (k Keys) Seal(h *Hello) []byte {
	b := h.marshal()
	return append(b, sum(k[0], b)...)
}

// Open verifies and parses a message. It parses no byte before the HMAC is verified.
func (k Keys) Open(b []byte) (*Hello, RejectReason) {
	if len(b) < sumBytes {
		return nil, Forged
	}
	text, proof := b[:len(b)-sumBytes], b[len(b)-sumBytes:]
	for _, key := range k {
		if hmac.Equal(sum(key, text), proof) {
			h, ok := unmarshal(text)
			if !ok {
				return nil, Version
			}
			return h, ""
		}
	}
	return nil, Forged
}

func sum(key, text []byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write(text)
	return m.Sum(nil)
}
