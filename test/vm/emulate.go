package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
)

// user is the directory that holds QEMU's emulation of single programs, which is static itself.
func (c Cache) user() string { return filepath.Join(c.Dir, "user") }

// Emulate replaces this process by a program of arm64 for Linux, whose processor QEMU emulates. The
// program is static, as Go's are without cgo, and its system calls are this kernel's. Emulate
// fetches QEMU into the cache if it is not there, and returns only if it fails.
func (c Cache) Emulate(ctx context.Context, args []string) error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("QEMU is fetched for x86-64, and this machine is %s: use an x86-64 machine", runtime.GOARCH)
	}
	if len(args) == 0 {
		return errors.New("no program to emulate")
	}
	if err := c.fetchQEMU(ctx, c.user(), 20, "qemu-user"); err != nil {
		return fmt.Errorf("fetch QEMU: %w", err)
	}
	emulator := filepath.Join(c.user(), "usr/bin/qemu-aarch64")
	return fmt.Errorf("%s: %w", emulator, syscall.Exec(emulator, append([]string{emulator}, args...), os.Environ()))
}
