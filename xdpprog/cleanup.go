package xdpprog

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/link"
)

// Cleanup detaches every program whose link is pinned in pinDir, and removes all pins: those that
// Load and Attach made in a process that ended without Close. It returns a description of each
// removed item. While another process has pinDir locked, it fails with ErrInUse and changes
// nothing. If pinDir is missing, there is nothing to do.
func Cleanup(pinDir string) (removed []string, err error) {
	if _, err := os.Stat(pinDir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	lock, err := lockPins(pinDir)
	if errors.Is(err, ErrNoBPFFS) {
		return nil, nil // not a pin directory: nothing can be pinned in it
	}
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	links, err := os.ReadDir(filepath.Join(pinDir, linkDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list pinned links: %w", err)
	}
	for _, pin := range links {
		l, err := link.LoadPinnedLink(filepath.Join(pinDir, linkDir, pin.Name()), nil)
		if err == nil {
			// The link is still open when its pin is removed, so that the kernel detaches the
			// program before the close returns, and not later in a kernel worker.
			err = dropLink(l)
		}
		if err != nil {
			return removed, fmt.Errorf("detach %s: %w", pin.Name(), err)
		}
		removed = append(removed, pinnedProgram(pin.Name()))
	}
	maps, err := filepath.Glob(filepath.Join(pinDir, mapPrefix+"*", "*"))
	if err != nil {
		return removed, err
	}
	if err := removePins(pinDir); err != nil {
		return removed, err
	}
	if len(maps) > 0 {
		removed = append(removed, fmt.Sprintf("%d BPF maps in %s", len(maps), pinDir))
	}
	return removed, nil
}

// pinnedProgram describes the program of a pinned link.
func pinnedProgram(pin string) string {
	hook, index, _ := strings.Cut(pin, "_")
	on := "interface " + index + ", which is gone"
	if i, err := strconv.Atoi(index); err == nil {
		if found, err := net.InterfaceByIndex(i); err == nil {
			on = found.Name
		}
	}
	return fmt.Sprintf("%s program on %s", strings.ToUpper(hook), on)
}
