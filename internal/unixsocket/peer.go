package unixsocket

import (
	"bytes"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Peer returns the process at the other end of a Unix socket, which connected or listens
// (SO_PEERCRED, unix(7)).
func Peer(conn net.Conn) (cred *unix.Ucred, err error) {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("%T is no unix socket", conn)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	failed := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if failed != nil {
		err = failed
	}
	return cred, err
}

// Listener returns the ID of the process that listens on a Unix socket, from the kernel; 0 for a
// process of a PID namespace that this process cannot see, such as another container's. The process
// need not answer.
func Listener(path string) (pid int, err error) {
	conn, err := net.DialTimeout("unix", path, dialTimeout)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	cred, err := Peer(conn)
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

// WhySilent returns why the process that listens on a socket may not answer, and what to do. Call
// it when a connection succeeded and got no answer.
func WhySilent(path string) string {
	const unknown = "its process is stopped, or its loops have stalled: start it again"
	pid, err := Listener(path)
	if err != nil || pid == 0 {
		return unknown
	}
	// proc_pid_stat(5): the state follows the name, which may contain any character.
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if i := bytes.LastIndexByte(text, ')'); err == nil && i >= 0 && bytes.HasPrefix(text[i:], []byte(") T")) {
		return fmt.Sprintf("process %d is stopped (SIGSTOP): `kill -CONT %[1]d` continues it", pid)
	}
	return fmt.Sprintf("process %d runs, but has stalled or gets no CPU: `kill -ABRT %[1]d` ends it and has it write "+
		"to its log what each goroutine does; then start it again", pid)
}
