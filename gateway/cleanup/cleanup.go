// Package cleanup removes from a node what the daemon makes on it and leaves to a next process, for
// the case that there is none: `sluice cleanup`.
//
//	settings of NICs       put back by napi.json, while the programs are there
//	programs, links, maps  detached and unpinned (xdpprog.Cleanup)
//	host link              deleted, with its routes, neighbours, sysctls and programs
//	BPF file system        unmounted, if the daemon mounted it
//	stateDir               the daemon's files in it, and itself if nothing is left
//
// Each step finds nothing where it was done before. The lock on the flow table is held meanwhile:
// no process starts.
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
	"sluice.dev/sluice/gateway/drains"
	"sluice.dev/sluice/gateway/owners"
	"sluice.dev/sluice/gateway/seed"
	"sluice.dev/sluice/gateway/steering"
	"sluice.dev/sluice/host/hostlink"
	"sluice.dev/sluice/internal/trusted"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/xdpprog"
)

// ErrRunning is returned by Run while a process runs. Nothing was changed.
var ErrRunning = errors.New("sluice runs")

// files are the daemon's in stateDir.
var files = []string{"flows", "flows.new", "flows" + flowtable.RestingSuffix, "pins",
	"modes.json", "modes.json.new", "napi.json", "napi.json.new",
	"bpffs", "bpffs.new", "status.sock", config.WaitingSocketFile, config.ReloadSocketFile,
	config.HandOverSocketFile,
	filepath.Join(config.PulseDirectory, config.PulseSocketFile),
	drains.Name, drains.Name + trusted.NewSuffix, assign.File, assign.File + trusted.NewSuffix,
	owners.Name, owners.Name + trusted.NewSuffix, seed.Name, seed.Name + trusted.NewSuffix}

// Run removes all that a daemon with this configuration made, and returns what that was, also
// before an error. After an error it may be called again.
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
		return nil, fmt.Errorf("%w with stateDir %s%s: stop it first; SIGTERM with drain.handOver: false cleans up, "+
			"too", ErrRunning, c.StateDir, process(c.StatusSocket()))
	}
	if errors.Is(before, fs.ErrNotExist) && err == nil { // it is of this call
		err = os.Remove(filepath.Join(c.StateDir, "flows"))
	}
	return lock, err
}

// process names the process behind a status socket, if it can be told.
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
			continue // it is gone, and its settings with it
		}
		if _, found := original.Get(i.Name, device.Index); !found {
			continue
		}
		// No settings are wanted, so those from before come back.
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
	ours, kernels := c.Tuning.HostLinkEnds()
	deleted, err := hostlink.Delete(ours, kernels)
	if !deleted {
		return nil, err
	}
	return []string{"host link " + ours + " and " + kernels}, err
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
	// A directory is not ours if something else is in it, or if it is mounted, as in a pod.
	for _, dir := range []string{filepath.Dir(c.PulseSocket()), c.StateDir} {
		if os.Remove(dir) == nil {
			removed = append(removed, dir)
		}
	}
	return removed, nil
}
