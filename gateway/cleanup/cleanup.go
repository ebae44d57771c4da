// Package cleanup implements `sluice cleanup`. It removes from a node everything that the daemon
// made and left for a next process, when no process follows:
//
//	settings of NICs       put back by napi.json, while the programs are there
//	programs, links, maps  detached and unpinned (xdpprog.Cleanup)
//	host link              deleted, with its routes, neighbours, sysctls and programs
//	BPF file system        unmounted, if the daemon mounted it
//	stateDir               the daemon's files in it, and itself if nothing is left
//
// A step that was done before finds nothing to do. Cleanup holds the lock on the flow table, so no
// daemon starts meanwhile.
package cleanup

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"sluice.dev/sluice/allocate/assign"
	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath/xsk/napi"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/mapped"
	"sluice.dev/sluice/gateway/denials"
	"sluice.dev/sluice/gateway/drains"
	"sluice.dev/sluice/gateway/owners"
	"sluice.dev/sluice/gateway/seed"
	"sluice.dev/sluice/gateway/sources"
	"sluice.dev/sluice/gateway/steering"
	"sluice.dev/sluice/host/hostlink"
	"sluice.dev/sluice/internal/journal"
	"sluice.dev/sluice/internal/trusted"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/xdpprog"
)

// ErrRunning is returned by Run while a process runs. Nothing was changed.
var ErrRunning = errors.New("sluice is running")

// files are the names of the daemon's files in stateDir.
var files = []string{"flows", "flows.new", "flows" + flowtable.RestingSuffix, "pins",
	"modes.json", "modes.json.new", "napi.json", "napi.json.new",
	"bpffs", "bpffs.new", "status.sock", config.WaitingSocketFile, config.ReloadSocketFile,
	config.HandOverSocketFile,
	filepath.Join(config.PulseDirectory, config.PulseSocketFile),
	denials.Name, denials.Name + trusted.NewSuffix, drains.Name, drains.Name + trusted.NewSuffix,
	journal.Name, journal.OldName, assign.File, assign.File + trusted.NewSuffix,
	owners.Name, owners.Name + trusted.NewSuffix, seed.Name, seed.Name + trusted.NewSuffix,
	sources.Name, sources.Name + trusted.NewSuffix}

// Run removes everything that a daemon with this configuration made. It returns the names of
// the removed parts, even with an error. After an error it may be called again.
func Run(c *config.Configuration) (removed []string, err error) {
	lock, err := takeLock(c)
	if err != nil {
		return nil, err
	}
	if lock != nil {
		defer lock.Close()
	}
	for _, step := range []func(*config.Configuration) ([]string, error){
		restoreDevices, removePrograms, removeHostLink, unmount, removeFiles,
	} {
		done, err := step(c)
		removed = append(removed, done...)
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// takeLock locks the flow table. Without its directory there is nothing to lock: it returns nil.
func takeLock(c *config.Configuration) (*mapped.File, error) {
	if _, err := os.Stat(c.StateDir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	_, before := os.Stat(filepath.Join(c.StateDir, "flows"))
	lock, err := mapped.Lock(filepath.Join(c.StateDir, "flows"))
	if errors.Is(err, mapped.ErrInUse) {
		return nil, fmt.Errorf("%w with stateDir %s%s: stop it first; SIGTERM with drain.handOver: false also "+
			"cleans up", ErrRunning, c.StateDir, process(c.StatusSocket()))
	}
	if errors.Is(before, fs.ErrNotExist) && err == nil { // this call made the file
		err = os.Remove(filepath.Join(c.StateDir, "flows"))
	}
	return lock, err
}

// process describes the process behind a status socket; "" if it is unknown.
func process(socket string) string {
	switch pid, err := status.PeerPID(socket); {
	case err != nil:
		return ""
	case pid == 0:
		return ", in another container"
	default:
		return fmt.Sprintf(", as process %d", pid)
	}
}

func restoreDevices(c *config.Configuration) (removed []string, err error) {
	original, err := napi.OpenOriginal(filepath.Join(c.StateDir, "napi.json"))
	if err != nil {
		return nil, err
	}
	for _, i := range c.Interfaces {
		device, err := net.InterfaceByName(i.Name)
		if err != nil {
			continue // the device is gone, with its settings
		}
		if _, found := original.Get(i.Name, device.Index); !found {
			continue
		}
		// With empty Settings, Apply restores the original ones.
		if _, err := napi.Apply(i.Name, device.Index, napi.Settings{}, original); err != nil {
			return removed, err
		}
		removed = append(removed, "NAPI settings of "+i.Name)
	}
	return removed, nil
}

func removePrograms(c *config.Configuration) ([]string, error) {
	return xdpprog.Cleanup(filepath.Join(c.BPFFS, "sluice"))
}

func removeHostLink(c *config.Configuration) ([]string, error) {
	user, kernel := c.Tuning.HostLinkEnds()
	deleted, err := hostlink.Delete(user, kernel)
	if !deleted {
		return nil, err
	}
	return []string{"host link " + user + " and " + kernel}, err
}

func unmount(c *config.Configuration) ([]string, error) {
	m, err := steering.FindMount(c.BPFFS, c.StateDir)
	if err != nil || !m.Mounted() {
		return nil, err
	}
	if err := m.Remove(); err != nil {
		return nil, err
	}
	return []string{"BPF file system on " + c.BPFFS}, nil
}

func removeFiles(c *config.Configuration) (removed []string, err error) {
	for _, name := range files {
		path := filepath.Join(c.StateDir, name)
		switch err := os.Remove(path); {
		case err == nil:
			removed = append(removed, path)
		case !errors.Is(err, fs.ErrNotExist):
			return removed, err
		}
	}
	// Remove fails if the directory has other files or is a mount, as in a pod; then it stays.
	for _, dir := range []string{filepath.Dir(c.PulseSocket()), c.StateDir} {
		if os.Remove(dir) == nil {
			removed = append(removed, dir)
		}
	}
	return removed, nil
}
