package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Version is the version of the messages. Gateways of a group must have the same one.
const Version = 8

// Kind is the kind of a frame.
type Kind uint8

// Kinds of frames. The zero value is no kind.
const (
	Hello Kind = iota + 1
	Records
	Beat
	Applied
	Mine
	CopyStates
)

// Bounds of a frame.
const (
	// MaxMessages is the maximum number of messages in Records, of records in Mine, and of states
	// in CopyStates.
	MaxMessages = 1024
	// MaxName is the maximum length of a member's name, in bytes (RFC 1123).
	MaxName = 253
	// MaxFrame is the maximum size of a frame, in bytes: Records with MaxMessages IPv6 records.
	MaxFrame = 9 + MaxMessages*(5+recordBytes6+openingBytes)
)

// ErrMalformed is the error of a frame that no gateway of this version sends.
var ErrMalformed = errors.New("malformed frame")

// VersionError is the error of a Hello of another version.
type VersionError uint16

// Error implements error. It names the versions of the two gateways.
func (v VersionError) Error() string {
	return fmt.Sprintf("the other gateway has version %d of the group's protocol, this one has version %d: all "+
		"gateways of a group must have the same version", uint16(v), Version)
}

// KindOf returns the kind of a frame, or 0 if there is none.
func KindOf(frame []byte) Kind {
	if len(frame) == 0 || len(frame) > MaxFrame || Kind(frame[0]) > CopyStates {
		return 0
	}
	return Kind(frame[0])
}

// Greeting is the content of a Hello.
type Greeting struct {
	Name        string // of the sender
	Incarnation uint64 // of the sender
	// Sources is a hash of the source addresses of both gateways in the sender's list of members.
	Sources uint64
}

// AppendHello appends a Hello.
func AppendHello(to []byte, g Greeting) []byte {
	to = binary.BigEndian.AppendUint16(append(to, byte(Hello)), Version)
	to = binary.BigEndian.AppendUint64(to, g.Incarnation)
	return append(binary.BigEndian.AppendUint64(to, g.Sources), g.Name...)
}

// ReadHello reads a Hello. The error is a VersionError if the version differs, in which case the
// rest is not read.
func ReadHello(frame []byte) (g Greeting, err error) {
	const head, numbers = 1 + 2, 8 + 8
	if KindOf(frame) != Hello || len(frame) < head {
		return g, ErrMalformed
	}
	if v := binary.BigEndian.Uint16(frame[1:]); v != Version {
		return g, VersionError(v)
	}
	body := frame[head:]
	if len(body) <= numbers || len(body) > numbers+MaxName {
		return g, ErrMalformed
	}
	return Greeting{Incarnation: binary.BigEndian.Uint64(body), Sources: binary.BigEndian.Uint64(body[8:]),
		Name: string(body[numbers:])}, nil
}

// AppendBeat appends a Beat. echo is the Sent of the last Acknowledgement that the owner has read.
func AppendBeat(to []byte, echo int64) []byte {
	return binary.BigEndian.AppendUint64(append(to, byte(Beat)), uint64(echo))
}

// ReadBeat reads a Beat.
func ReadBeat(frame []byte) (echo int64, err error) {
	if KindOf(frame) != Beat || len(frame) != 1+8 {
		return 0, ErrMalformed
	}
	return int64(binary.BigEndian.Uint64(frame[1:])), nil
}
