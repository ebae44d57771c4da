package hello

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
)

// Refusal is why a message is not used; empty: it is.
type Refusal string

// Refusals of Open. Package members has more.
const (
	Forged  Refusal = "forged"  // its HMAC is of none of the keys
	Version Refusal = "version" // it is none of this version
)

// Keys are what members share. The first one signs, and each proves: so a new key is first added
// behind the one in use everywhere, then put in front.
type Keys [][]byte

// minKey is the shortest key: as many bytes as 128 bits that are written in hexadecimal.
const minKey = 32

// ReadKeys reads a file with one key a line.
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
		return nil, fmt.Errorf("there is no key: write one of %d characters or more, such as `openssl rand -hex 32` "+
			"writes", minKey)
	}
	return k, nil
}

// Equal reports whether these are the same keys in the same order.
func (k Keys) Equal(o Keys) bool {
	return bytes.Equal(bytes.Join(k, []byte("\n")), bytes.Join(o, []byte("\n")))
}

// Seal returns the bytes of a message.
func (k Keys) Seal(h *Hello) []byte {
	b := h.marshal()
	return append(b, sum(k[0], b)...)
}

// Open reads a message. Its bytes are looked at after it is known who wrote them.
func (k Keys) Open(b []byte) (*Hello, Refusal) {
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
