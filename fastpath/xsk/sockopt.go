package xsk

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Calls for the socket options of AF_XDP (include/uapi/linux/if_xdp.h). x/sys/unix has only their
// numbers and layouts.

func setsockopt[T any](fd, option int, v *T) error {
	// Safety: the kernel reads sizeof(T) bytes of v, for the duration of the call.
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(option),
		uintptr(unsafe.Pointer(v)), unsafe.Sizeof(*v), 0)
	return errnoErr(errno)
}

func getsockopt[T any](fd, option int, v *T) error {
	size := uint32(unsafe.Sizeof(*v))
	// Safety: the kernel writes at most size bytes of v, for the duration of the call.
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(option),
		uintptr(unsafe.Pointer(v)), uintptr(unsafe.Pointer(&size)), 0)
	return errnoErr(errno)
}

func errnoErr(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// registerUMEM registers the memory of the socket's frames with the kernel.
func registerUMEM(fd int, u *UMEM) error {
	reg := unix.XDPUmemReg{
		// Safety: the mapping is not moved, and the kernel pins it before the call returns.
		Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(u.mem)))),
		Len:  uint64(u.frames * u.frameSize),
		Size: uint32(u.frameSize),
	}
	return setsockopt(fd, unix.XDP_UMEM_REG, &reg)
}
