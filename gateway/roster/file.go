package roster

import (
	"os"
	"path/filepath"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/internal/statefile"
)

// FileName is the name of the file with the list in force, in group.stateDir.
const FileName = "group-members.json"

// version must change when the meaning of a field changes.
const version = 1

// File is the file with the list in force: a gateway that starts without the API server goes on
// with it.
type File string

type content struct {
	statefile.Version
	Members []config.GroupMember `json:"members"`
}

// In returns the File of a directory on a disk.
func In(dir string) File { return File(filepath.Join(dir, FileName)) }

// Load returns the list; empty if there is no file.
func (f File) Load() ([]config.GroupMember, error) {
	var c content
	err := statefile.Load(string(f), version, &c)
	return c.Members, err
}

// Save returns when the list is on the disk. It makes the directory if it is missing. A member must
// not get records before the list is there: a later process must know the members that may have
// them.
func (f File) Save(list []config.GroupMember) error {
	if err := os.MkdirAll(filepath.Dir(string(f)), 0o700); err != nil {
		return err
	}
	return statefile.Sync(string(f), &content{statefile.Version{Version: version}, list})
}
