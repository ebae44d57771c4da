package xsk

// owners records for every frame, in one byte, which socket has it and on which side. The rings
// alone do not show that: a frame that the kernel took out of the fill or transmit ring and has not
// returned is in no ring. With the table every move checks the frame law, and Close finds the
// frames inside the device.
//
//	0            user space: pool, batch, hold queue
//	2*slot + 1   given to the fill ring of the socket in that slot
//	2*slot + 2   given to its transmit ring
//	255          kept: not usable yet, see kept
//
// The worker is its only writer, because only the worker moves frames.
type owners []uint8

const (
	userSpace  = 0
	kept       = 255
	maxSockets = 64
)

func fillOwner(slot int) uint8 { return uint8(2*slot + 1) }
func txOwner(slot int) uint8   { return uint8(2*slot + 2) }

// give hands a frame of user space to a ring. It panics if a ring already has the frame: two sides
// would write it at once.
func (o owners) give(frame uint64, to uint8) {
	if o[frame] != userSpace {
		panic(
			"xsk: a frame was given to a ring while a ring had it; find the code that used it after Transmit, or " +
				"freed it twice",
		)
	}
	o[frame] = to
}

// take takes a frame back to user space. It returns false if the frame was not given to this ring.
func (o owners) take(frame uint64, from uint8) bool {
	if frame >= uint64(len(o)) || o[frame] != from {
		return false
	}
	o[frame] = userSpace
	return true
}
