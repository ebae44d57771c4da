package updates

import (
	"net/netip"
	"sync"
	"time"
)

// ring is the number of addresses for a probed Service's versions. A version must be seen before
// half as many later ones are sent.
const ring = 240

// versions are the versions of one probed Service: the time when each was sent, and the time of the
// first datagram forwarded by it or by a later one.
type versions struct {
	service int

	mu   sync.Mutex
	sent []time.Time // by version; the first exists from the start
	seen []time.Time // by version, up to the newest seen
}

// address is the destination of packets forwarded by a version.
func address(service, version int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 244, byte(service), byte(1 + version%ring)})
}

// send records that the next version is being sent, and returns it.
func (v *versions) send(now time.Time) (version int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.sent = append(v.sent, now)
	return len(v.sent) - 1
}

// arrived records a datagram. It ignores a datagram by an older version than the newest seen.
func (v *versions) arrived(at time.Time, to netip.Addr) {
	v.mu.Lock()
	defer v.mu.Unlock()
	slot := int(to.As4()[3]) - 1
	last := len(v.seen) - 1
	ahead := ((slot-last)%ring + ring) % ring
	if ahead >= ring/2 {
		return
	}
	for range ahead {
		v.seen = append(v.seen, at)
	}
}

// latencies returns the times from sending to seeing, and the number of versions that were never
// seen.
func (v *versions) latencies() (list []time.Duration, unseen int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := 1; i < min(len(v.sent), len(v.seen)); i++ {
		list = append(list, v.seen[i].Sub(v.sent[i]))
	}
	return list, len(v.sent) - min(len(v.sent), len(v.seen))
}
