package pid1

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Called reports whether this process is the first of a guest.
func Called() bool { return os.Getpid() == 1 && len(os.Args) > 0 && os.Args[0] == "/init" }

// Main runs the guest from beginning to end. It does not return.
func Main() {
	status, err := run()
	if err != nil {
		fmt.Println("vm: guest:", err) // on the console; the host prints it if there is no status
	} else if err := tell(strconv.Itoa(status)); err != nil {
		fmt.Println("vm: guest: tell the exit status:", err)
	}
	unix.Sync()
	powerOff()
}

func run() (status int, err error) {
	if err := mountFirst(); err != nil {
		return 0, err
	}
	o, err := readOrder()
	if err != nil {
		return 0, err
	}
	if err := loadEarly(); err != nil {
		return 0, err
	}
	if err := enterRoot(o); err != nil {
		return 0, err
	}
	if err := mountRest(o); err != nil {
		return 0, err
	}
	if err := prepare(o); err != nil {
		return 0, err
	}
	if err := tell(Begun); err != nil {
		return 0, err
	}
	return command(o)
}

// prepare makes the guest a machine that a command can use: tools, drivers, names, loopback.
func prepare(o Order) error {
	if err := unix.Sethostname([]byte("guest")); err != nil {
		return fmt.Errorf("hostname: %w", err)
	}
	if err := writeTools(o.Tools); err != nil {
		return err
	}
	// The kernel requests modules by itself, too: of a kind of link, an address family, a qdisc.
	if err := os.WriteFile("/proc/sys/kernel/modprobe", []byte(filepath.Join(toolDir, "modprobe")), 0o644); err != nil {
		return err
	}
	for _, module := range o.Load {
		if out, err := exec.Command(filepath.Join(toolDir, "modprobe"), module).CombinedOutput(); err != nil {
			return fmt.Errorf("modprobe %s: %w: %s", module, err, strings.TrimSpace(string(out)))
		}
	}
	if err := nameNICs(o.NICs); err != nil {
		return err
	}
	return loopbackUp()
}

// toolDir is in the guest's PATH behind the directories of the machine: installed tools are
// preferred.
const toolDir = "/run/vm/bin"

func writeTools(tools map[string][]string) error {
	if err := os.MkdirAll(toolDir, 0o755); err != nil {
		return err
	}
	for name, args := range tools {
		script := "#!/bin/sh\nexec '" + strings.Join(args, "' '") + "' \"$@\"\n"
		if err := os.WriteFile(filepath.Join(toolDir, name), []byte(script), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// command runs the command, waits for it and ends its orphans.
func command(o Order) (status int, err error) {
	stdout, err := relay(PortOut, os.Stdout)
	if err != nil {
		return 0, err
	}
	stderr, err := relay(PortErr, os.Stderr)
	if err != nil {
		return 0, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	env := withTools(o.Env)
	path := o.Args[0]
	if err := os.Setenv("PATH", valueOf(env, "PATH")); err != nil {
		return 0, err
	}
	if err := os.Chdir(o.Dir); err != nil {
		return 0, err
	}
	if path, err = exec.LookPath(path); err != nil {
		fmt.Fprintln(stderr.in, "vm: in the guest:", err)
		stdout.end()
		stderr.end()
		return 127, nil // as shells say it
	}
	p, err := os.StartProcess(path, o.Args, &os.ProcAttr{Dir: o.Dir, Env: env, Files: []*os.File{null, stdout.in,
		stderr.in}})
	if err != nil {
		return 0, err
	}
	status = waitFor(p.Pid)
	endAll()
	stdout.end()
	stderr.end()
	return status, nil
}

func withTools(env []string) []string {
	env = slices.Clone(env)
	for i, e := range env {
		if strings.HasPrefix(e, "PATH=") {
			env[i] = e + ":/usr/local/sbin:/usr/sbin:/sbin:" + toolDir
			return env
		}
	}
	return append(env, "PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:"+toolDir)
}

func valueOf(env []string, name string) string {
	for _, e := range env {
		if value, ok := strings.CutPrefix(e, name+"="); ok {
			return value
		}
	}
	return ""
}

// waitFor waits for a process, and on the way for every orphan that ends: the first process is the
// parent of them all.
func waitFor(pid int) (status int) {
	for {
		var ws unix.WaitStatus
		got, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 255 // there is no child left: pid was waited for elsewhere, which nothing does
		case got == pid && ws.Signaled():
			return 128 + int(ws.Signal())
		case got == pid && ws.Exited():
			return ws.ExitStatus()
		}
	}
}

// endAll ends every process but this one and waits until each is gone, so that no socket is bound
// to a NIC any more.
func endAll() {
	gone := make(chan struct{})
	_ = unix.Kill(-1, unix.SIGTERM) // there may be none
	go func() {
		defer close(gone)
		for {
			if _, err := unix.Wait4(-1, nil, 0, nil); err == unix.ECHILD {
				return
			}
		}
	}()
	for _, grace := range []time.Duration{5 * time.Second, 10 * time.Second} {
		select {
		case <-gone:
			return
		case <-time.After(grace):
			_ = unix.Kill(-1, unix.SIGKILL)
		}
	}
}

// Begun is sent to the host before the command runs; its status follows.
const Begun = "begun "

// tell writes to the host how far the guest is.
func tell(text string) error {
	port, err := openPort(PortStatus)
	if err != nil {
		return err
	}
	if _, err := port.WriteString(text); err != nil {
		return err
	}
	return port.Close()
}

// powerOff ends the guest. By QEMU's exit port no driver's shutdown runs: that of igb in Linux 7.3
// fails if the last socket's zero-copy buffers are not yet gone, and they go some time after the
// socket.
func powerOff() {
	if port, err := os.OpenFile("/dev/port", os.O_WRONLY, 0); err == nil {
		if _, err := port.WriteAt([]byte{0}, ExitPort); err != nil {
			fmt.Println("vm: guest: exit port:", err)
		}
	}
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println("vm: guest: power off:", err)
	}
	select {}
}
