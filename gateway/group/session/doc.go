// Package session has the two ends of a stream from an owner to a member: which frame is sent when,
// and which frames are refused. It joins the state machines of package group to the messages of
// package wire, without a network, a clock or a goroutine.
//
//	Sender (owner)                          Receiver (member)
//	Hello  ───────────────────────────────►
//	       ◄─────────────────────────────── Hello, Mine...    records of earlier incarnations
//	Records: All, Set..., AllDone  ───────►
//	       ◄─────────────────────────────── Applied           for each Records, or each BeatNanos
//	       ◄─────────────────────────────── Saw               when packets have changed copies
//	Beat  ────────────────────────────────►                   each BeatNanos
//
// The caller passes each frame that arrives to Receive, and transmits the frames that Next returns,
// in order. An error of Receive ends the stream: the caller closes it, and tells the other gateway
// the error's text. It opens a stream by making a new Sender or Receiver.
//
// A Sender belongs to the goroutine that owns its Ledger, a Receiver to the one that owns its
// Copies. Only the last Receiver of an owner may be used: an earlier stream must be closed before.
package session

import (
	"errors"

	"sluice.dev/sluice/gateway/group"
)

// BeatNanos is the interval of beats, and of Applied if nothing else is to be acknowledged.
const BeatNanos = group.LeaseNanos / 3

// ErrUnexpected is the error of a frame of a kind, or with a number, that may not come now.
var ErrUnexpected = errors.New("frame out of turn")
