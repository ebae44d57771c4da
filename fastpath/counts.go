package fastpath

import "sluice.dev/sluice/nat/reason"

// counts has the worker's private sums; publish copies them to the Block
// once per step.
type counts struct {
	rx, rxBytes, tx, txBytes     uint64
	generated, returned          uint64
	kernelRx, flows, icmpLimited uint64
	retried                      uint64 // flows
	resets, resetsLimited        uint64
	echoReplies                  uint64 // each fragment counts
	proxyHeaders                 uint64 // sent, each repetition counts
	wrongChecksums               uint64 // segments that would have changed a flow
	unfinishedChecksums          uint64
	held                         int64
	heldMore                     int // frames of held packets beyond one each
	batches                      uint64
	drops                        [reason.Count]uint64
	moved                        bool   // since publish
	dirty                        uint64 // drop reasons that changed since publish, by bit
}

// Reasons must fit the dirty mask.
var _ [64 - reason.Count]struct{}
