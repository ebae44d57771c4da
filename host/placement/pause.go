package placement

import "time"

const (
	// settle is the least pause between two moves of workers, and settleMost the longest.
	settle     = 2 * time.Second
	settleMost = time.Minute
	// calm is after how many pauses without a move the next pause is settle again.
	calm = 4
)

// Pause is the time between two moves of workers. The CPUs where packets arrive may depend on the
// workers' CPUs: packets that a worker sends to a veth are received, and perhaps answered, on the
// worker's CPU. So workers could follow themselves for ever, and each pause is twice as long as the
// one before.
//
// The zero value is over.
type Pause struct {
	began  time.Time
	length time.Duration
}

// Over reports whether workers may move.
func (p *Pause) Over(now time.Time) bool { return now.Sub(p.began) >= p.length }

// Begin begins the pause after a move.
func (p *Pause) Begin(now time.Time) {
	if now.Sub(p.began) >= calm*p.length {
		p.length = settle
	} else {
		p.length = min(2*p.length, settleMost)
	}
	p.began = now
}
