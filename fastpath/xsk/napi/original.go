package napi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Original is a file that remembers what devices had before they were changed. A nil
// Original remembers nothing.
type Original struct {
	path string
	boot string

	mu      sync.Mutex
	devices map[string]remembered
}

// remembered is one device's. An index is given to one device only until the next boot.
type remembered struct {
	Boot    string            `json:"boot"`
	IfIndex int               `json:"ifindex"`
	Values  map[string]string `json:"values"`
}

// OpenOriginal reads the file at path, which need not exist.
func OpenOriginal(path string) (*Original, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("original settings of devices: %w", err)
	}
	o := &Original{path: path, boot: strings.TrimSpace(string(boot)), devices: map[string]remembered{}}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(text) == 0 {
		return o, nil // empty: the machine crashed before it was written, and the settings went with it
	}
	if err == nil {
		// A field of another version of the program is refused: what it means is not known.
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		err = d.Decode(&o.devices)
	}
	if err != nil {
		return nil, fmt.Errorf("original settings of devices, %s: %w (remove the file to go on; compare the devices' "+
			"settings with your own first)", path, err)
	}
	return o, nil
}

// of is what a device had before a predecessor changed it.
func (o *Original) of(name string, ifindex int) (values map[string]string, found bool) {
	if o == nil {
		return nil, false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	r, found := o.devices[name]
	if !found || r.Boot != o.boot || r.IfIndex != ifindex {
		return nil, false
	}
	return r.Values, true
}

func (o *Original) keep(name string, ifindex int, values map[string]string) error {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.devices[name] = remembered{o.boot, ifindex, values}
	return o.save()
}

func (o *Original) forget(name string) error {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.devices, name)
	return o.save()
}

// save replaces the file as a whole. mu must be held.
func (o *Original) save() error {
	if len(o.devices) == 0 {
		if err := os.Remove(o.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	text, err := json.MarshalIndent(o.devices, "", "\t")
	if err != nil {
		return err
	}
	next := filepath.Join(filepath.Dir(o.path), "."+filepath.Base(o.path)+".next")
	if err := os.WriteFile(next, append(text, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(next, o.path)
}
