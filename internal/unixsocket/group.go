package unixsocket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"sluice.dev/sluice/internal/trusted"
)

// Shared is a socket that a group may open, too. It listens from Share on, at a path beside its own
// one; Publish gives it its own path. So another process's socket, which may be at that path until
// then, is replaced at once, and the right to change a group is not needed after Share.
type Shared struct {
	net.Listener
	path string

	mu        sync.Mutex
	published bool
}

const (
	sharedMode = 0o660
	// sharedDirectory are the bits of a directory that a group may pass and list.
	sharedDirectory = 0o050
)

// Share makes a socket for a group, and its directory if that is missing. The group gets the right
// to pass a directory that no other user than its owner may pass.
func Share(path string, gid int) (*Shared, error) {
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := trusted.StateDirectory(dir); err != nil {
		return nil, err
	}
	if err := shareDirectory(dir, gid); err != nil {
		return nil, err
	}
	next := path + trusted.NewSuffix
	if found, err := isSocket(next); err != nil {
		return nil, err
	} else if found { // of a process that ended before Publish
		if err := os.Remove(next); err != nil {
			return nil, err
		}
	}
	l, err := Listen(next)
	if err != nil {
		return nil, err
	}
	if err = chgrp(next, gid); err == nil {
		err = os.Chmod(next, sharedMode)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &Shared{Listener: l, path: path}, nil
}

func shareDirectory(dir string, gid int) error {
	info, err := os.Lstat(dir)
	if err != nil || info.Mode().Perm()&0o001 != 0 {
		return err
	}
	if err := chgrp(dir, gid); err != nil {
		return err
	}
	return os.Chmod(dir, info.Mode().Perm()|sharedDirectory)
}

// chgrp changes the group of a file. It has the group already where the process's own group is the
// same, or where its directory passes on the group.
func chgrp(path string, gid int) error {
	info, err := os.Lstat(path)
	if err != nil || int(info.Sys().(*syscall.Stat_t).Gid) == gid {
		return err
	}
	err = os.Lchown(path, -1, gid)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("give %s to group %d: the process has neither CAP_CHOWN nor this group: add it "+
			"(securityContext.supplementalGroups of a pod, SupplementaryGroups= of a systemd unit)", path, gid)
	}
	return err
}

// isSocket reports whether there is a socket at a path in a trusted directory. A file of another
// type is an error.
func isSocket(path string) (bool, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case info.Mode()&fs.ModeSocket == 0:
		return false, &trusted.Refusal{Path: path, Why: "is not a socket", Do: "remove it, or choose another path"}
	}
	return true, nil
}

// Publish gives the socket its own path, in place of a socket of an earlier process.
func (s *Shared) Publish() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := isSocket(s.path); err != nil {
		return err
	}
	if err := os.Rename(s.path+trusted.NewSuffix, s.path); err != nil {
		return err
	}
	s.published = true
	return nil
}

// Close stops listening and removes the socket.
func (s *Shared) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.Listener.Close()
	if s.published {
		err = errors.Join(err, os.Remove(s.path))
		s.published = false
	}
	return err
}
