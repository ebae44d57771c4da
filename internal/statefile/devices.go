package statefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"sluice.dev/sluice/internal/trusted"
)

// Devices is a file with values of each network device, for the next process. The kernel can give
// an index to another device after a reboot, so values stored before the last boot, or for another
// index, are not found. A nil Devices stores nothing. It is safe for concurrent use.
type Devices[T any] struct {
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

// OpenDevices reads the file at path, which need not exist. It is an error if the file cannot be
// read, or has fields that T does not have: it comes from another version, and the fields' meaning
// is unknown. With the error, OpenDevices returns an empty Devices, for callers that can do without
// the stored values.
func OpenDevices[T any](path string) (*Devices[T], error) {
	boot, err := Boot()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f := &Devices[T]{path: path, boot: boot, devices: map[string]device[T]{}}
	text, err := trusted.ReadState(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(text) == 0 {
		return f, nil // empty: the machine crashed during a write
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

// Boot returns the kernel's ID of the present boot (boot_id, drivers/char/random.c).
func Boot() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(boot)), err
}

// Get returns the values stored for a device.
func (f *Devices[T]) Get(name string, ifindex int) (values T, found bool) {
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

// Set stores values for a device.
func (f *Devices[T]) Set(name string, ifindex int, values T) error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devices[name] = device[T]{f.boot, ifindex, values}
	return f.save()
}

// Forget removes the values of a device.
func (f *Devices[T]) Forget(name string) error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.devices, name)
	return f.save()
}

// Clear removes the values of all devices.
func (f *Devices[T]) Clear() error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.devices)
	return f.save()
}

// save replaces the file, or removes it if no values are stored. mu must be held.
func (f *Devices[T]) save() error {
	if len(f.devices) == 0 {
		return Remove(f.path)
	}
	text, err := json.MarshalIndent(f.devices, "", "\t")
	if err != nil {
		return err
	}
	return trusted.WriteState(f.path, append(text, '\n'))
}
