package flowlog

import (
	"errors"
	"fmt"
	"os"

	"sluice.dev/sluice/flowtable/mapped"
	"sluice.dev/sluice/internal/statefile"
	"sluice.dev/sluice/internal/trusted"
)

// AccountsFile is the name, in stateDir, of the file of accounts of flows.
const AccountsFile = "accounts"

// Accounts is the memory of the flow table's accounts, in a file: like the flow table they outlive
// the process. The lock of the flow table also protects this file. A process that takes over maps
// the file while its predecessor still uses it.
type Accounts struct {
	file *mapped.File
	path string
}

// OpenAccounts opens or makes the file, and maps size bytes of it. It replaces a file of another
// size, which belongs to another table, by an empty one.
func OpenAccounts(path string, size int64) (*Accounts, error) {
	file, err := trusted.OpenState(path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && info.Size() != 0 && info.Size() != size {
		file.Close()
		if err := statefile.Remove(path); err != nil { // another process may still map it
			return nil, err
		}
		return OpenAccounts(path, size)
	}
	if err == nil {
		err = file.Truncate(size)
	}
	f := mapped.Take(file, path)
	if err == nil {
		err = f.Map(size)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("accounts of flows: %w", err)
	}
	return &Accounts{f, path}, nil
}

// Memory returns the mapped memory.
func (a *Accounts) Memory() []byte { return a.file.Mem }

// Close unmaps the memory, and keeps or removes the file.
func (a *Accounts) Close(remove bool) error {
	if remove {
		return errors.Join(statefile.Remove(a.path), a.file.Close())
	}
	return a.file.Close()
}
