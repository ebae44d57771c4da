package fastpath

import (
	"unsafe"

	"sluice.dev/sluice/flowtable"
)

const _ = -(unsafe.Sizeof(Desc{}) ^ descBytes)

// StepByOracle is Step with judgeAny for every packet.
func (w *Worker) StepByOracle(now uint64) int {
	w.begin(flowtable.Time(now))
	moved := 0
	for i, link := range w.c.Links {
		n := link.Receive(w.b.desc[:])
		moved += n
		w.count(i, n)
		for _, d := range w.b.desc[:n] {
			w.n.rxBytes += uint64(d.Len)
			w.judgeAny(d)
		}
		w.transmit()
	}
	moved += w.release()
	w.transmit()
	w.reclaim()
	w.expire()
	w.publish(moved)
	return moved
}
