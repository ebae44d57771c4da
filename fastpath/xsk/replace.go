package xsk

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// settleFor is the time after the end of a registration for which its memory may still count as
// locked: a kernel worker releases it about 20 ms later, and up to half a second later on a busy
// machine.
const settleFor = time.Second

// CanReplace reports whether the sockets of an interface on these UMEMs can be closed and sockets
// with the given mode and Config.Long be opened in their place. There must be such sockets. It
// returns nil if so, and ErrMemlock if the new sockets would need registrations of memory that the
// kernel refuses. It tests this by making all of these registrations for a moment.
//
// No socket of these UMEMs may be opened or closed meanwhile.
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

// takesMore reports whether such a replacement needs an additional registration of the memory:
// sockets of other interfaces have no registration that the new sockets can join, but share the
// registration of the sockets to be closed, so it does not end.
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

// passing reports whether an error of bind may be temporary: a kernel worker releases a closed
// socket's queue and memory later.
func (u *UMEM) passing(err error) bool {
	return errors.Is(err, unix.EBUSY) ||
		errors.Is(err, ErrMemlock) && time.Since(time.Unix(0, u.ended.Load())) < settleFor
}
