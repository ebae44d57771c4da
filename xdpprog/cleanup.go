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

// Cleanup detaches every program whose link is pinned in pinDir, and removes all pins: what Load
// and Attach made, and a process left that ended without Close. It returns what it removed. It
// fails with ErrInUse, and changes nothing, while a process has pinDir. A missing pinDir is clean.
func Cleanup(pinDir string) (removed []string, err error) {
	if _, err := os.Stat(pinDir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	lock, err := lockPins(pinDir)
	if errors.Is(err, ErrNoBPFFS) {
		return nil, nil // what is there is not ours, as nothing can be pinned in it
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
			// The link is still open when its pin goes, so that the kernel detaches the program
			// before the close returns, and not in a worker of its own.
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

// pinnedProgram describes what a pin of a link holds.
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
