// Command first is the first process of a node: it makes the namespaces, mounts the node's own file
// systems, starts its programs and reaps their orphans.
//
// It runs twice. The outer process enters the node's control groups and starts the inner one in
// namespaces of its own, in which that is process 1: when it ends, however it ends, the kernel
// kills every process of the node, and mounts and namespaces go with the last of them. The inner
// one is killed if the outer one dies, and that is started to die with the test.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/cluster/nodes/spec"
)

// inside marks the second run.
const inside = "inside"

func main() {
	// The inner process is killed when the thread that started it ends, so that must be this one.
	runtime.LockOSThread()
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("name the file that describes the node")
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	var n spec.Node
	if err := json.Unmarshal(text, &n); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	if len(args) == 2 && args[1] == inside {
		return inner(&n)
	}
	return outer(&n, args[0])
}

// outer starts the inner process and waits for it.
func outer(n *spec.Node, file string) error {
	if err := enterGroups(n.Group); err != nil {
		return err
	}
	c := exec.Command("/proc/self/exe", file, inside)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWCGROUP,
		Pdeathsig:  syscall.SIGKILL,
	}
	// The outer process passes a signal on to the inner process and ends after it.
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
	if err := c.Start(); err != nil {
		return fmt.Errorf("start a process in namespaces of its own (CAP_SYS_ADMIN is needed): %w", err)
	}
	go func() {
		for s := range asked {
			_ = c.Process.Signal(s) // gone meanwhile is as well
		}
	}()
	if err := os.WriteFile(n.PIDFile, []byte(strconv.Itoa(c.Process.Pid)), 0o644); err != nil {
		return err
	}
	return c.Wait()
}

// inner makes the node and runs its programs.
func inner(n *spec.Node) error {
	if err := mountAll(n); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(n.Name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	return serve(n)
}
