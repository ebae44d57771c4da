package config

// Tuning is what few installations need. docs/tuning.md and defaults.yaml have the symptom that
// calls for each field; without the symptom its default is right.
type Tuning struct {
	// RingSize is the size of each of the four rings of a socket, in descriptors.
	RingSize int `json:"ringSize"`
	// FrameSize is the size of a frame of the UMEM, in bytes.
	FrameSize FrameSize `json:"frameSize"`
}

// FramesPerQueue returns how many frames there are for each interface and queue: as many as the
// fill ring and the transmit ring hold together, so that both can be full.
func (t *Tuning) FramesPerQueue() int { return 2 * t.RingSize }

// The bounds of the ring size.
const minRingSize, maxRingSize = 64, 1 << 15

func (k *check) tuning(c *Configuration) {
	t := &c.Tuning
	if n := t.RingSize; n < minRingSize || n > maxRingSize || n&(n-1) != 0 {
		k.fail("tuning.ringSize", "is %d, choose a power of two from %d to %d", n, minRingSize, maxRingSize)
	}
	if s := t.FrameSize; s != AutoFrameSize && s != 2048 && s != 4096 {
		k.fail("tuning.frameSize", "is %d, the kernel takes frames of 2048 or 4096 bytes; auto chooses by interfaces", s)
	}
	if held := c.Fragments.Held; held > t.FramesPerQueue()/2 {
		k.fail("fragments.held", "is %d, more than half of the frames of a queue (%d): held fragments would starve the rings; "+
			"lower it or raise tuning.ringSize", held, t.FramesPerQueue())
	}
}
