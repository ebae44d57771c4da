package xsk

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// settleFor is for how long after a registration ended its memory may still count as locked: a
// kernel worker releases it some 20 ms later, and up to half a second on a busy machine.
const settleFor = time.Second

// CanReplace reports whether the sockets of an interface on these UMEMs, of which there must be
// some, can be closed and others be opened in their place, in a mode and for packets in several
// frames or not: nil, or ErrMemlock if that takes registrations of memory that the kernel refuses.
// It tests that by making them, all at once, for a moment.
//
// No socket of these UMEMs must be opened or closed meanwhile.
func CanReplace(umems []*UMEM, ifindex int, mode Mode, long bool) (err error) {
	for _, u := range umems {
		if !u.takesMore(ifindex, mode, long) {
			continue
		}
		fd, e := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if e != nil {
			return errors.Join(err, explainSocket(e))
		}
		defer func() {
			u.ended.Store(time.Now().UnixNano())
			err = errors.Join(err, unix.Close(fd))
		}()
		if e := explainRegister(registerUMEM(fd, u)); e != nil {
			return e
		}
	}
	return nil
}

// takesMore reports whether such a replacement takes one more registration of the memory than there
// are: sockets of other interfaces have none that the new sockets can join, and share the one of
// the sockets to be closed, which is kept for them.
func (u *UMEM) takesMore(ifindex int, mode Mode, long bool) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	shared := false
	for _, stays := range u.sockets {
		if stays == nil || stays.ifindex == ifindex || stays.gone.Load() {
			continue
		}
		if stays.long == long && (mode == Auto || stays.mode == mode) {
			return false
		}
		for _, leaves := range u.sockets {
			shared = shared || leaves != nil && leaves.ifindex == ifindex &&
				leaves.long == stays.long && leaves.mode == stays.mode
		}
	}
	return shared
}

// passing reports whether an error of bind may be temporary: a closed socket's queue and memory are
// released later by a kernel worker.
func (u *UMEM) passing(err error) bool {
	return errors.Is(err, unix.EBUSY) ||
		errors.Is(err, ErrMemlock) && time.Since(time.Unix(0, u.ended.Load())) < settleFor
}
