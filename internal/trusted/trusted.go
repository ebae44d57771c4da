// Package trusted opens files whose content controls the daemon. The daemon has large rights, and a
// user who can write or replace such a file would gain them.
//
//	                 the daemon's own                what an operator or kubelet writes
//	                 (OpenState, ReadState, ...)     (Open, Directory)
//	the last link    refused                         followed
//	its type         a regular file                  a regular file
//	who may write    its owner                       its owner
//	its directory    only its owner may write        the same, or a read-only mount
//	above            each directory on the way, with those of links: only its owner may write, or it
//	                 is sticky (/tmp), or a read-only mount
//
// An owner is root or the daemon's user in each case. A read-only mount is trusted because kubelet
// makes the directory of a ConfigMap with mode 0777 (const perm in pkg/volume/emptydir) and mounts
// it read-only. In a sticky directory no other user can replace root's files (unlink(2), EPERM),
// but any user can create missing ones, so the files themselves must not be in one.
//
// Other users can write none of the directories, so only root and the daemon's user can change a
// path between the check and the opening. Opening never blocks and never touches a device: files of
// other types are rejected before, and opened files are checked again. POSIX ACLs count: their mask
// shows as the group's permission bits (acl(5)).
package trusted

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Refusal is the error for a file or directory that exists but must not be used: its path, why, and
// what to do.
type Refusal struct{ Path, Why, Do string }

func (r *Refusal) Error() string { return fmt.Sprintf("%s %s; %s", r.Path, r.Why, r.Do) }

// othersWrite has the write bits of group and others.
const othersWrite = 0o022

// owned rejects a file or directory that belongs to a user other than root and this process's user,
// or that users other than its owner may write. move is advice to print before the command that
// changes it, or empty.
func owned(path string, info fs.FileInfo, move string) error {
	st := info.Sys().(*syscall.Stat_t)
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return &Refusal{path, fmt.Sprintf("belongs to user %d, who could use it to control Sluice", st.Uid),
			move + fmt.Sprintf("chown %d %s", os.Geteuid(), path)}
	}
	// The mode of a link has no meaning.
	if info.Mode()&fs.ModeSymlink == 0 && info.Mode().Perm()&othersWrite != 0 {
		return &Refusal{path, fmt.Sprintf("may be written by users other than its owner (mode %04o), who "+
			"could use it to control Sluice", st.Mode&0o7777), move + "chmod go-w " + path}
	}
	return nil
}

// regular refuses all but regular files.
func regular(path string, info fs.FileInfo) error {
	if info.Mode().IsRegular() {
		return nil
	}
	return &Refusal{path, "is " + kind(info.Mode()) + ", not a regular file",
		"replace it with a regular file, or remove it"}
}

func kind(m fs.FileMode) string {
	switch m.Type() {
	case 0:
		return "a regular file"
	case fs.ModeSymlink:
		return "a symbolic link"
	case fs.ModeDir:
		return "a directory"
	case fs.ModeNamedPipe:
		return "a FIFO"
	case fs.ModeSocket:
		return "a socket"
	case fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice:
		return "a device"
	}
	return "something special"
}

// open opens a path whose directories are trusted. With os.O_CREATE it makes a missing file.
func open(path string, flag int) (*os.File, error) {
	info, err := os.Lstat(path)
	if err == nil {
		if err = regular(path, info); err == nil {
			err = owned(path, info, "")
		}
	} else if errors.Is(err, fs.ErrNotExist) && flag&os.O_CREATE != 0 {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil {
		if err = regular(path, info); err == nil {
			err = owned(path, info, "")
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// readOnly reports whether a path is on a read-only mount.
func readOnly(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Flags&unix.ST_RDONLY != 0
}

// directory rejects a directory that others may write. One above the file's directory (onTheWay)
// may be sticky.
func directory(path string, onTheWay bool) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &Refusal{path, "is " + kind(info.Mode()) + ", not a directory",
			"replace it with a directory, or name another one"}
	}
	err = owned(path, info, "use a directory that only root may write, such as one in /etc or /run, or ")
	if err == nil || readOnly(path) {
		return nil
	}
	// The owner of a sticky directory may delete any file in it.
	uid := int(info.Sys().(*syscall.Stat_t).Uid)
	if onTheWay && info.Mode()&fs.ModeSticky != 0 && (uid == 0 || uid == os.Geteuid()) {
		return nil
	}
	return err
}

// maxLinks is the number of links that a path may have: as many as the kernel follows
// (MAXSYMLINKS).
const maxLinks = 40

// resolve returns a path without links, and rejects it if other users could change where it leads.
func resolve(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	at, names, links := "/", strings.Split(abs, "/"), 0
	for len(names) > 0 {
		name := names[0]
		names = names[1:]
		if name == "" || name == "." {
			continue
		}
		if err := directory(at, true); err != nil {
			return "", err
		}
		next := filepath.Join(at, name) // ".." too: at has no links
		info, err := os.Lstat(next)
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if err := owned(next, info, ""); err != nil { // any user can create one in a sticky directory
			return "", err
		}
		if links++; links > maxLinks {
			return "", &fs.PathError{Op: "open", Path: path, Err: unix.ELOOP}
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		names = append(strings.Split(target, "/"), names...)
	}
	return at, nil
}
