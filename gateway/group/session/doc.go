// Package session has the two ends of a stream from an owner to a member. They decide which frame
// is sent next, and which frames are refused. They join the state machines of package group to the
// messages of package wire, without a network, a clock or a goroutine.
//
//	Sender (owner)                          Receiver (member)
//	Hello  ───────────────────────────────►
//	       ◄─────────────────────────────── Hello, Mine...    records of earlier incarnations
//	Records: All, Set..., AllDone  ───────►
//	       ◄─────────────────────────────── Applied           for each Records, or each BeatNanos
//	       ◄─────────────────────────────── CopyStates        when packets have changed copies
//	Beat  ────────────────────────────────►                   each BeatNanos
//
// The caller passes each frame that arrives to Receive, and transmits the frames that Next returns,
// in order. An error of Receive ends the stream: the caller closes it, and tells the other gateway
// the error's text. It opens a stream by making a new Sender or Receiver.
//
// Only the goroutine that owns the Ledger may use a Sender, and only the goroutine that owns the
// Copies a Receiver. Before a new Receiver of an owner is used, the previous stream must be closed.
package session

import (
	"errors"

	"sluice.dev/sluice/gateway/group"
)

// BeatNanos is the interval of beats, and of Applied messages while there is nothing to
// acknowledge.
const BeatNanos = group.LeaseNanos / 3

// ErrUnexpected is the error of a frame whose kind or number is not valid at this point of the
// stream.
var ErrUnexpected = errors.New("frame out of turn")
