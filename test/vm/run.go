package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sluice.dev/sluice/test/vm/pid1"
)

// Config is a guest and its work.
type Config struct {
	Cache  Cache
	Kernel Kernel

	// Args is the command. It runs as root, in Dir of the host's root, with the variables of Env.
	Args []string
	Env  []string
	Dir  string
	// Share is a directory of the host that the guest may write to, under the same name; empty for
	// none.
	Share string

	NICs    []NIC
	Modules []string // loaded before the command runs, beside the NICs' drivers

	CPUs   int    // 0: 2
	Memory string // as QEMU has it, 2G for instance; empty: 2G

	Stdout, Stderr io.Writer
	// Console is a file for the kernel's messages; empty: nothing keeps them.
	Console string
	// Limit is the most that the guest may take, from power-on to its end.
	Limit time.Duration
}

// ExitError is the status of a command that ran and failed.
type ExitError struct{ Status int }

func (e *ExitError) Error() string {
	return fmt.Sprintf("the command in the guest ended with status %d", e.Status)
}

// Run boots the guest, runs the command, and returns when the guest has ended: nil if the command's
// status was 0, an *ExitError if it was another, any other error if there was no status: the guest
// did not boot, its kernel panicked, or time was over.
func Run(ctx context.Context, c Config) (err error) {
	if len(c.Args) == 0 {
		return errors.New("no command to run in the guest")
	}
	scratch, err := os.MkdirTemp("", "sluice-vm-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	g := guest{Config: c, scratch: scratch}
	g.Config.fill()
	if err := writeInitramfs(g.initramfs(), c.Kernel, g.order()); err != nil {
		return fmt.Errorf("write the guest's initramfs: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, g.Limit)
	defer cancel()
	for range boots {
		if err = g.once(ctx); !errors.Is(err, errNotBegun) || ctx.Err() != nil {
			break
		}
	}
	return err
}

// boots are how often a guest is booted until its command begins. The emulation of code that
// another processor changes is not exact while the host is busy: now and then a kernel runs into a
// breakpoint of its own that has just been taken away, mostly while it boots and patches itself. A
// guest that fails later fails for good.
const boots = 3

// errNotBegun is wrapped by errors of a guest that ended before its command began.
var errNotBegun = errors.New("the guest did not boot")

// once boots the guest and waits for its end.
func (g guest) once(ctx context.Context) error {
	ended := g.emulate(ctx)
	if err := g.saveConsole(); err != nil {
		return err
	}
	text, err := os.ReadFile(g.status())
	if err != nil {
		return err
	}
	after, begun := strings.CutPrefix(string(text), pid1.Begun)
	if status, err := strconv.Atoi(after); begun && err == nil {
		if status != 0 {
			return &ExitError{status}
		}
		return nil
	}
	what := errNotBegun
	if begun {
		what = errors.New("the guest ended without a status of the command")
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		what = fmt.Errorf("%w within %v", what, g.Limit)
	case ended != nil:
		what = fmt.Errorf("%w: QEMU: %w", what, ended)
	}
	return fmt.Errorf("%w; the last of its console:\n%s", what, g.lastWords())
}

func (c *Config) fill() {
	if c.CPUs == 0 {
		c.CPUs = 2
	}
	if c.Memory == "" {
		c.Memory = "2G"
	}
	if c.Limit == 0 {
		c.Limit = 10 * time.Minute
	}
}

// guest is a run of a guest. scratch is gone afterwards.
type guest struct {
	Config
	scratch string
}

func (g guest) initramfs() string { return filepath.Join(g.scratch, "initramfs") }
func (g guest) status() string    { return filepath.Join(g.scratch, "status") }
func (g guest) console() string   { return filepath.Join(g.scratch, "console") }

func (g guest) order() pid1.Order {
	o := pid1.Order{
		Args: g.Args, Env: g.Env, Dir: g.Dir, Share: g.Share,
		Release: g.Kernel.Release, Modules: g.Kernel.Modules(),
		Tools: map[string][]string{
			"modprobe": g.Cache.tool("bin/kmod", "modprobe"),
			"rmmod":    g.Cache.tool("bin/kmod", "rmmod"),
			"lsmod":    g.Cache.tool("bin/kmod", "lsmod"),
			"ethtool":  g.Cache.tool("sbin/ethtool", "ethtool"),
		},
	}
	for i, n := range g.NICs {
		o.Load = append(o.Load, n.driver())
		o.NICs = append(o.NICs, pid1.NIC{Name: n.Name, MAC: mac(i)})
	}
	o.Load = append(o.Load, g.Modules...)
	return o
}

// emulate runs QEMU until it ends. When this process ends, so does QEMU.
func (g guest) emulate(ctx context.Context) error {
	for _, name := range []string{g.status(), g.console()} {
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			return err
		}
	}
	args := g.Cache.tool("usr/bin/qemu-system-x86_64", "qemu-system-x86_64", g.args()...)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "QEMU_MODULE_DIR="+filepath.Join(g.Cache.tools(), "usr/lib/x86_64-linux-gnu/qemu"))
	var errs strings.Builder
	cmd.Stderr = &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	copied, err := g.streams(cmd)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: Pdeathsig is sent when the thread that started QEMU ends
		err := cmd.Start()
		for _, f := range cmd.ExtraFiles {
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			ended <- err
			return
		}
		ended <- cmd.Wait()
	}()
	err = <-ended
	copied()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == exitPortStatus {
		err = nil
	}
	if err != nil && errs.Len() > 0 {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String()))
	}
	return err
}

// exitPortStatus is what QEMU ends with when the guest writes 0 to isa-debug-exit: twice the value,
// plus one.
const exitPortStatus = 1

// streams gives QEMU a pipe for each of the command's streams, and returns what waits until both
// are read.
func (g guest) streams(cmd *exec.Cmd) (wait func(), err error) {
	var done []chan struct{}
	for _, to := range []io.Writer{g.Stdout, g.Stderr} {
		if to == nil {
			to = io.Discard
		}
		out, in, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, in)
		end := make(chan struct{})
		done = append(done, end)
		go func() {
			defer close(end)
			_, _ = io.Copy(to, out) // whose reader has gone away is not the guest's concern
			_ = out.Close()
		}()
	}
	return func() {
		for _, d := range done {
			<-d
		}
	}, nil
}

func (g guest) saveConsole() error {
	if g.Console == "" {
		return nil
	}
	text, err := os.ReadFile(g.console())
	if err != nil {
		return err
	}
	return os.WriteFile(g.Console, text, 0o644)
}

// lastWords are the last lines of the console.
func (g guest) lastWords() string {
	text, err := os.ReadFile(g.console())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}

// Environment returns the variables of the host that a command in a guest gets: a shell's, Go's and
// Sluice's. Other variables may be secret.
func Environment(host []string) (env []string) {
	for _, e := range host {
		name, _, _ := strings.Cut(e, "=")
		switch {
		case name == "PATH", name == "HOME", name == "USER", name == "LANG", name == "TERM",
			strings.HasPrefix(name, "SLUICE_"), strings.HasPrefix(name, "GO"):
			env = append(env, e)
		}
	}
	return env
}
