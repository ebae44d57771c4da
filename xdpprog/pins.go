package xdpprog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// The contents of PinDir. Names have no dots: bpffs reserves them (kernel/bpf/inode.c).
//
//	maps_<layout>/frontends, ...   the shared maps
//	links/xdp_<ifindex>            XDP links, of NICs and of the host link
//	links/tcx_<ifindex>            egress links
const (
	linkDir   = "links"
	mapPrefix = "maps_"
	hookXDP   = "xdp"
	hookTCX   = "tcx"
)

// mapLayout must change with the meaning of any shared map's bytes; a change of type or size is
// detected without it.
const mapLayout = 6

// MapLayout describes the layout of the shared maps. Two programs can use the same maps if their
// layouts are equal and Prepare accepts the maps.
func MapLayout() string { return "layout " + strconv.Itoa(mapLayout) }

// ErrNoBPFFS is returned by Load if PinDir is not on a mounted bpffs.
var ErrNoBPFFS = errors.New("not on a mounted BPF file system")

// openMaps opens pinned maps that fit and makes the others.
func (s *Steering) openMaps() error {
	dir := ""
	if s.config.PinDir != "" {
		var err error
		if dir, err = makePinDirs(s.config.PinDir); err != nil {
			return err
		}
	}
	for name, spec := range s.spec.Maps {
		if ofPort(name) {
			continue
		}
		m, err := s.openMap(spec, dir)
		if err != nil {
			return fmt.Errorf("BPF map %q: %w", name, explain(err))
		}
		s.maps[name] = m
	}
	return nil
}

// openMapsInUse opens the pinned maps, all of which must exist and fit.
func (s *Steering) openMapsInUse() error {
	dir := filepath.Join(s.config.PinDir, mapPrefix+strconv.Itoa(mapLayout))
	for name, spec := range s.spec.Maps {
		if ofPort(name) {
			continue
		}
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, spec.Name), nil)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: there is no map %q of layout %d", ErrMisfit, name, mapLayout)
		}
		if err != nil {
			return fmt.Errorf("BPF map %q: open pin: %w", name, explain(err))
		}
		s.maps[name] = m
		if misfit := spec.Compatible(m); misfit != nil {
			return fmt.Errorf("%w: map %q: %w", ErrMisfit, name, misfit)
		}
	}
	return nil
}

// ofPort reports whether each port has its own map of that name.
func ofPort(name string) bool {
	return name == steerMapXsks || name == steerMapQueues || name == steerMapMacs || name == steerMapVlans
}

func (s *Steering) openMap(spec *ebpf.MapSpec, dir string) (*ebpf.Map, error) {
	if dir == "" {
		return ebpf.NewMap(spec)
	}
	path := filepath.Join(dir, spec.Name)
	m, err := ebpf.LoadPinnedMap(path, nil)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("open pin: %w", err)
	default:
		misfit := spec.Compatible(m)
		if misfit == nil {
			s.config.Logger.Debug("took over BPF map", "map", spec.Name)
			return m, nil
		}
		s.config.Logger.Info("replaced BPF map", "map", spec.Name, "reason", misfit)
		if err := errors.Join(m.Unpin(), m.Close()); err != nil {
			return nil, fmt.Errorf("remove pin: %w", err)
		}
	}
	if m, err = ebpf.NewMap(spec); err != nil {
		return nil, err
	}
	if err := m.Pin(path); err != nil {
		return nil, errors.Join(fmt.Errorf("pin: %w", err), m.Close())
	}
	return m, nil
}

// makePinDirs makes the pin directories and returns the directory of the maps. It removes pins of
// maps of another layout; programs that still use these maps keep them.
func makePinDirs(pinDir string) (string, error) {
	maps := filepath.Join(pinDir, mapPrefix+strconv.Itoa(mapLayout))
	for _, dir := range []string{maps, filepath.Join(pinDir, linkDir)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", fmt.Errorf("pin directory: %w", err)
		}
	}
	others, err := filepath.Glob(filepath.Join(pinDir, mapPrefix+"*"))
	if err != nil {
		return "", err
	}
	for _, dir := range others {
		if dir == maps {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return "", fmt.Errorf("remove maps of another layout: %w", err)
		}
	}
	return maps, nil
}

// removePins removes the directories of makePinDirs, and PinDir itself unless it is a mount point
// or has other contents.
func removePins(pinDir string) error {
	maps, err := filepath.Glob(filepath.Join(pinDir, mapPrefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range append(maps, filepath.Join(pinDir, linkDir)) {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove pins: %w", err)
		}
	}
	err = os.Remove(pinDir)
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	return err
}

// removeUnusedPins undoes makePinDirs if no predecessor's program is attached.
func removeUnusedPins(pinDir string) error {
	if pinDir == "" {
		return nil
	}
	if links, err := os.ReadDir(filepath.Join(pinDir, linkDir)); err != nil || len(links) > 0 {
		return nil
	}
	return removePins(pinDir)
}

// DetachOthers detaches a predecessor's programs from interfaces to which this Steering has not
// attached: interfaces that were removed from the configuration, or from the node. Interfaces in
// configured, by ifindex, keep the program until Attach can replace it: without a program the
// kernel would answer in place of services.
func (s *Steering) DetachOthers(configured ...int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.config.PinDir == "" {
		return nil
	}
	return s.detachStale(configured)
}

// Left returns the indexes of interfaces on which a predecessor has left an XDP program, except
// interfaces with a program of this Steering, and interfaces in configured.
func (s *Steering) Left(configured ...int) (list []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pins, err := os.ReadDir(filepath.Join(s.config.PinDir, linkDir))
	if err != nil { // nothing is pinned
		return nil
	}
	for _, pin := range pins {
		hook, index, _ := strings.Cut(pin.Name(), "_")
		ifindex, err := strconv.Atoi(index)
		if err == nil && hook == hookXDP && s.ports[ifindex] == nil && !slices.Contains(configured, ifindex) {
			list = append(list, ifindex)
		}
	}
	return list
}

func (s *Steering) detachStale(configured []int) error {
	dir := filepath.Join(s.config.PinDir, linkDir)
	pins, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list pinned links: %w", err)
	}
	var errs []error
	for _, pin := range pins {
		hook, index, _ := strings.Cut(pin.Name(), "_")
		ifindex, err := strconv.Atoi(index)
		if err != nil || hook == hookXDP && s.ports[ifindex] != nil || hook == hookTCX && s.egress[ifindex] != nil ||
			s.waits(ifindex, configured) {
			continue
		}
		l, err := link.LoadPinnedLink(filepath.Join(dir, pin.Name()), nil)
		if err == nil {
			s.config.Logger.Info("detached a predecessor's program", "hook", hook, "ifindex", ifindex)
			err = dropLink(l)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// waits reports whether a configured interface exists and has no program of this Steering yet.
func (s *Steering) waits(ifindex int, configured []int) bool {
	if s.ports[ifindex] != nil || !slices.Contains(configured, ifindex) {
		return false
	}
	_, err := readHook(ifindex)
	return !errors.Is(err, ErrDeviceGone)
}

// openPinned returns the link of a pin, or nil if there is no pin.
func openPinned(path string) (link.Link, error) {
	if path == "" {
		return nil, nil
	}
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, explain(err)
	}
	return l, nil
}

// pin pins a link, so that it outlives the process. It detaches a link that cannot be pinned.
func pin(l link.Link, path string) error {
	if path == "" {
		return nil
	}
	if err := l.Pin(path); err != nil {
		return errors.Join(fmt.Errorf("pin link: %w", explain(err)), l.Close())
	}
	return nil
}

// closeLink closes a link, or detaches it.
func closeLink(l link.Link, detach bool) error {
	if detach {
		return dropLink(l)
	}
	return l.Close()
}

// dropLink detaches a link, even if another process also holds it, and removes its pin.
func dropLink(l link.Link) error {
	detach, unpin := l.Detach(), l.Unpin()
	if errors.Is(unpin, fs.ErrNotExist) { // it was removed before
		unpin = nil
	}
	return errors.Join(detach, unpin, l.Close())
}
