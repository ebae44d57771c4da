// Package statefile stores state for the next process as JSON with a version, in a file that no
// other user may write (package trusted).
package statefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"sluice.dev/sluice/internal/trusted"
)

// Version is embedded in the content of a file. It must change when the meaning of a field changes.
type Version struct {
	Version int `json:"version"`
}

func (v *Version) number() int { return v.Version }

// Load reads a file into content, a pointer to a structure that embeds Version. If the file does
// not exist, Load changes nothing. A file of another version, or with a field that content does not
// have, is an error, because its meaning is unknown.
func Load(path string, version int, content interface{ number() int }) error {
	text, err := trusted.ReadState(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(content); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if n := content.number(); n != version {
		return fmt.Errorf("%s: version %d, this program has %d", path, n, version)
	}
	return nil
}

// Save replaces a file as a whole.
func Save(path string, content any) error {
	return save(path, content, trusted.WriteState)
}

// Sync is Save that returns when the content is on the disk.
func Sync(path string, content any) error { return save(path, content, trusted.SyncState) }

func save(path string, content any, write func(string, []byte) error) error {
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return write(path, append(text, '\n'))
}

// Remove removes a file, if it exists.
func Remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
