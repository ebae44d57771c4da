package sandbox

import (
	"fmt"
	"os"
	"runtime"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// allowed has the system calls of a running gateway and of Go's runtime; conditions has the calls
// that depend on their arguments. A name that the architecture does not have is left out: arm64 has
// only the later forms of many, and its newfstatat is fstatat in the library's table.
//
// All others return EPERM: execve, ptrace, mount, modules, namespaces, keys, io_uring, ... A call
// that ends the process instead would turn a mistake of this list into an outage.
var allowed = []string{
	// Workers, first: the kernel decides these by number alone, without running the filter.
	"poll", "ppoll", "sendto", "recvfrom", "nanosleep", "clock_nanosleep", "futex", "sched_yield", "clock_gettime",
	// Memory.
	"munmap", "mremap", "madvise", "brk", "mincore", "msync", "mlock", "munlock", "mlock2", "memfd_create",
	// Threads, signals, time, limits.
	"exit", "exit_group", "set_robust_list", "get_robust_list", "rseq", "gettid", "getpid", "getppid",
	"set_tid_address", "arch_prctl", "membarrier", "restart_syscall", "sigaltstack", "rt_sigaction",
	"rt_sigprocmask", "rt_sigreturn", "rt_sigpending", "rt_sigtimedwait", "getitimer", "setitimer",
	"timer_create", "timer_settime", "timer_delete", "timerfd_create", "timerfd_settime", "timerfd_gettime",
	"clock_getres", "gettimeofday", "time", "times", "getrusage", "getrlimit", "setrlimit", "prlimit64", "getcpu",
	"sched_getaffinity", "sched_setaffinity", "sched_getattr", "sched_setattr", "sched_getparam",
	"sched_getscheduler", "getpriority", "setpriority",
	"getrandom", "uname", "sysinfo", "getuid", "geteuid", "getgid", "getegid", "getresuid", "getresgid",
	"getgroups", "capget", "umask", "getpgrp", "getpgid",
	// Files.
	"read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "preadv2", "pwritev2", "open",
	"openat", "openat2", "close", "close_range", "creat", "stat", "fstat", "lstat", "newfstatat", "fstatat",
	"statx", "statfs", "fstatfs", "access", "faccessat", "faccessat2", "readlink", "readlinkat", "getdents64", "getcwd",
	"lseek", "fcntl", "flock", "dup", "dup2", "dup3", "pipe", "pipe2", "ftruncate", "truncate", "fallocate", "fsync",
	"fdatasync", "sync_file_range", "fadvise64", "mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "rename",
	"renameat", "renameat2", "fchmod", "fchmodat", "chmod", "utimensat", "sendfile", "copy_file_range", "splice",
	"inotify_init1", "inotify_add_watch", "inotify_rm_watch", "eventfd2", "epoll_create1", "epoll_ctl",
	"epoll_wait", "epoll_pwait", "epoll_pwait2", "select", "pselect6",
	// Sockets, and BPF.
	"bind", "listen", "accept", "accept4", "connect", "getsockname", "getpeername", "getsockopt", "setsockopt",
	"sendmsg", "recvmsg", "sendmmsg", "recvmmsg", "shutdown", "bpf",
}

// forMounts has the calls of a daemon with its own mounts, without mount itself.
var forMounts = []string{"umount2", "fsopen", "fsconfig", "fsmount"}

// newNamespaces are the flags of clone that make namespaces (linux/sched.h).
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// socketFamilies has the families of sockets that are allowed with any type.
var socketFamilies = []uint64{unix.AF_UNIX, unix.AF_NETLINK, unix.AF_XDP}

// ioctls has the requests of host/nic/ethtool, netlink and Go's library.
var ioctls = []uint64{unix.SIOCETHTOOL, unix.SIOCGIFNAME, unix.SIOCGIFINDEX, unix.TCGETS, unix.TIOCINQ}

// prctls name threads and memory, for debuggers, and make a worker's naps exact (package
// fastpath/thread, which works without it, with longer naps). PR_SET_NO_NEW_PRIVS only drops
// rights.
var prctls = []uint64{
	unix.PR_SET_TIMERSLACK, unix.PR_SET_NAME, unix.PR_GET_NAME, unix.PR_SET_VMA, unix.PR_SET_NO_NEW_PRIVS,
}

// conditions are the calls that are allowed for some arguments only.
func conditions() (list []seccomp.NameWithConditions) {
	add := func(name string, c ...seccomp.Condition) {
		list = append(list, seccomp.NameWithConditions{Name: name, Conditions: c})
	}
	is := func(argument uint32, value uint64) seccomp.Condition {
		return seccomp.Condition{Argument: argument, Operation: seccomp.Equal, Value: value}
	}
	without := func(argument uint32, bits uint64) seccomp.Condition {
		return seccomp.Condition{Argument: argument, Operation: seccomp.BitsNotSet, Value: bits}
	}
	// Threads, no processes.
	add("clone", seccomp.Condition{Argument: 0, Operation: seccomp.BitsSet, Value: unix.CLONE_THREAD},
		without(0, newNamespaces))
	// No memory becomes code.
	for _, name := range []string{"mmap", "mprotect"} {
		add(name, without(2, unix.PROT_EXEC))
	}
	// TCP and UDP, no raw sockets.
	for _, family := range socketFamilies {
		add("socket", is(0, family))
	}
	for _, family := range []uint64{unix.AF_INET, unix.AF_INET6} {
		for _, kind := range []uint64{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
			for _, flags := range []uint64{0, unix.SOCK_CLOEXEC, unix.SOCK_NONBLOCK, unix.SOCK_CLOEXEC |
				unix.SOCK_NONBLOCK} {
				add("socket", is(0, family), is(1, kind|flags))
			}
		}
	}
	add("socketpair", is(0, unix.AF_UNIX))
	for _, request := range ioctls {
		add("ioctl", is(1, request))
	}
	for _, option := range prctls {
		add("prctl", is(0, option))
	}
	// Signals to its own threads: Go preempts by them.
	self := uint64(os.Getpid())
	for _, name := range []string{"kill", "tgkill"} {
		add(name, is(0, self))
	}
	return list
}

// errno returns an action of the filter: the call fails so.
func errno(e unix.Errno) seccomp.Action { return seccomp.ActionErrno&^0xffff | seccomp.Action(e) }

// policy returns the filter.
func policy(c *Config) (*seccomp.Policy, error) {
	info, err := arch.GetInfo("")
	if err != nil {
		return nil, fmt.Errorf("system calls of %s: %w", runtime.GOARCH, err)
	}
	names := allowed
	if c.Mounts {
		names = append(append([]string(nil), names...), forMounts...)
	}
	var known []string
	for _, name := range names {
		if _, ok := info.SyscallNames[name]; ok {
			known = append(known, name)
		}
	}
	return &seccomp.Policy{
		DefaultAction: seccomp.ActionErrno,
		Syscalls: []seccomp.SyscallGroup{
			{Action: seccomp.ActionAllow, Names: known, NamesWithCondtions: conditions()},
			// Its arguments are in memory, where no filter looks: C libraries then take clone.
			{Action: errno(unix.ENOSYS), Names: []string{"clone3"}},
		},
	}, nil
}

// loadFilter sets the filter for all threads. The kernel logs the calls that it rejects (audit type
// 1326 with the number of the call).
func loadFilter(c *Config) error {
	p, err := policy(c)
	if err != nil {
		return err
	}
	err = seccomp.LoadFilter(seccomp.Filter{Flag: seccomp.FilterFlagTSync | seccomp.FilterFlagLog, Policy: *p})
	if err != nil {
		return fmt.Errorf("seccomp (the kernel needs CONFIG_SECCOMP_FILTER): %w", err)
	}
	return nil
}
