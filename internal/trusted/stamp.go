package trusted

import (
	"time"

	"golang.org/x/sys/unix"
)

// Stamp identifies a version of a file, to detect a change without reading it. Stamps are compared
// by ==.
type Stamp struct {
	device, inode uint64
	size          int64
	Modified      time.Time
	changed       time.Time // time of the last change of the inode: content, owner or mode
}

// StampOf returns the stamp of the file at a path. It follows links.
func StampOf(path string) (s Stamp, err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return s, err
	}
	return Stamp{uint64(st.Dev), st.Ino, st.Size, time.Unix(st.Mtim.Unix()), time.Unix(st.Ctim.Unix())}, nil
}
