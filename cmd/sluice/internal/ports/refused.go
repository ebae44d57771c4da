package ports

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

// refusals is a file with the MTUs at which devices took generic mode in mode auto. The process
// that takes a program over reads there whether native mode may be possible now: to find out, it
// has to take the generic program off. A nil refusals remembers nothing.
type refusals struct {
	path string
	boot string

	mu      sync.Mutex
	devices map[string]refusal
}

// refusal is one device's. An index is given to one device only until the next boot.
type refusal struct {
	Boot    string `json:"boot"`
	IfIndex int    `json:"ifindex"`
	MTU     int    `json:"mtu"`
}

// openRefusals reads the file at path, which need not exist. One that cannot be read, or of another
// version, is as none: devices then keep the mode they are in.
func openRefusals(path string) (*refusals, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("modes of devices: %w", err)
	}
	r := &refusals{path: path, boot: strings.TrimSpace(string(boot)), devices: map[string]refusal{}}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(text) == 0 {
		return r, nil
	}
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		err = d.Decode(&r.devices)
	}
	if err != nil {
		r.devices = map[string]refusal{}
		return r, fmt.Errorf("modes of devices, %s: %w", path, err)
	}
	return r, nil
}

// at returns the MTU at which a device took generic mode; 0 if that is not known.
func (r *refusals) at(name string, ifindex int) int {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.devices[name]; d.Boot == r.boot && d.IfIndex == ifindex {
		return d.MTU
	}
	return 0
}

// remove deletes the file, which need not exist.
func (r *refusals) remove() error {
	if err := os.Remove(r.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// set notes that a device took generic mode at an MTU; 0 forgets it.
func (r *refusals) set(name string, ifindex, mtu int) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	d := refusal{r.boot, ifindex, mtu}
	if have, ok := r.devices[name]; ok && have == d || !ok && mtu == 0 {
		return nil
	}
	if r.devices[name] = d; mtu == 0 {
		delete(r.devices, name)
	}
	text, err := json.MarshalIndent(r.devices, "", "\t")
	if err != nil {
		return err
	}
	next := filepath.Join(filepath.Dir(r.path), "."+filepath.Base(r.path)+".next")
	if err := os.WriteFile(next, append(text, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(next, r.path)
}
