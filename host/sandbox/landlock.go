package sandbox

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// Files has the files that may be opened, with everything below each directory. Paths that do not
// exist are left out, and stay closed if they are made later.
type Files struct {
	Read  []string // directories and files
	Write []string // directories: files below them may be made and removed, too
	// WriteFiles are directories whose files may be written, none made or removed.
	WriteFiles []string
	// Remove has directories, with entries in Write, that may be removed at the end.
	Remove []string
}

// system has the files that Go's resolver, TLS and time read, and those that the daemon reads of
// the kernel. It does not have all of /etc, where the host's keys and passwords are.
var system = []string{
	"/proc", "/sys", "/dev/null", "/dev/urandom",
	"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/services", "/etc/protocols", "/etc/localtime",
	"/etc/gai.conf", "/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/pki/ca-trust", "/etc/ca-certificates",
	"/run/systemd/resolve", "/usr/share/zoneinfo", "/usr/share/ca-certificates",
	"/usr/local/share/ca-certificates",
}

const (
	readFile = landlock.AccessFSSet(ll.AccessFSReadFile)
	readTree = readFile | ll.AccessFSReadDir
	write    = readTree | ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSRemoveFile |
		ll.AccessFSRemoveDir | ll.AccessFSMakeReg | ll.AccessFSMakeDir | ll.AccessFSMakeSock | ll.AccessFSMakeSym
	writeFiles = readTree | ll.AccessFSWriteFile | ll.AccessFSTruncate
)

// restrictFiles sets up Landlock, which confines later opens, renames, removals and executions, and
// signals and abstract sockets. It returns why it did not.
func restrictFiles(c *Config) (why string, err error) {
	switch {
	case c.Mounts:
		return "the daemon has mounts of its own to undo, which Landlock refuses", nil
	case c.Files == nil:
		return "in a container, whose file system is confined already", nil
	}
	if version, err := ll.LandlockGetABIVersion(); err != nil || version < 1 {
		return "the kernel has none: CONFIG_SECURITY_LANDLOCK, and landlock in lsm=", nil
	}
	f := c.Files
	var rules []landlock.Rule
	for _, r := range []struct {
		access landlock.AccessFSSet
		paths  []string
	}{
		{readTree, system}, {readTree, f.Read}, {write, f.Write}, {writeFiles, f.WriteFiles},
		{ll.AccessFSRemoveDir, parents(f.Remove)},
	} {
		for _, path := range r.paths {
			rules = append(rules, rule(r.access, path))
		}
	}
	confine := landlock.V6
	confine.HandledAccessNet = 0 // ports and servers follow from objects
	if err := confine.BestEffort().Restrict(rules...); err != nil {
		return "", fmt.Errorf("set up Landlock: %w", err)
	}
	return "", nil
}

func parents(dirs []string) (list []string) {
	for _, d := range dirs {
		list = append(list, filepath.Dir(d))
	}
	return list
}

// rule grants access to a path; a file takes no rights of directories.
func rule(access landlock.AccessFSSet, path string) landlock.Rule {
	if !isDirectory(path) {
		access &= readFile | ll.AccessFSWriteFile | ll.AccessFSTruncate
	}
	return landlock.PathAccess(access, path).IgnoreIfMissing()
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err != nil || info.IsDir()
}
