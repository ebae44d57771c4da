// Package perdevice is a file that remembers something about each network device, for the process
// that comes after this one. An index is given to one device only until the machine starts again,
// so what was stored before that, or about another index, is not found.
package perdevice

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"sluice.dev/sluice/internal/statefile"
	"sluice.dev/sluice/internal/trusted"
)

// File is such a file. A nil File remembers nothing. Any number of goroutines may use it.
type File[T any] struct {
	path string
	boot string

	mu      sync.Mutex
	devices map[string]device[T] // by name
}

type device[T any] struct {
	Boot    string `json:"boot"`
	IfIndex int    `json:"ifindex"`
	Values  T      `json:"values"`
}

// Open reads the file at path, which need not exist. A file of another version, which has fields
// that T has not, is an error, because what they mean is not known; so is one that cannot be read.
// Open returns an empty File with that error, for a caller to whom what was stored is not
// essential.
func Open[T any](path string) (*File[T], error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f := &File[T]{path: path, boot: strings.TrimSpace(string(boot)), devices: map[string]device[T]{}}
	text, err := trusted.ReadState(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(text) == 0 {
		return f, nil // empty: the machine crashed before it was written
	}
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		err = d.Decode(&f.devices)
	}
	if err != nil {
		clear(f.devices)
		return f, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// Get returns what is stored about a device.
func (f *File[T]) Get(name string, ifindex int) (values T, found bool) {
	if f == nil {
		return values, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	d, found := f.devices[name]
	if !found || d.Boot != f.boot || d.IfIndex != ifindex {
		return values, false
	}
	return d.Values, true
}

// Set stores something about a device.
func (f *File[T]) Set(name string, ifindex int, values T) error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devices[name] = device[T]{f.boot, ifindex, values}
	return f.save()
}

// Forget removes what is stored about a device.
func (f *File[T]) Forget(name string) error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.devices, name)
	return f.save()
}

// Clear removes what is stored about all devices.
func (f *File[T]) Clear() error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.devices)
	return f.save()
}

// save replaces the file as a whole, or removes it if nothing is stored. mu must be held.
func (f *File[T]) save() error {
	if len(f.devices) == 0 {
		return statefile.Remove(f.path)
	}
	text, err := json.MarshalIndent(f.devices, "", "\t")
	if err != nil {
		return err
	}
	return trusted.WriteState(f.path, append(text, '\n'))
}
