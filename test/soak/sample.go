package soak

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// sample is the gateway's resources at the end of a round.
type sample struct {
	anonymous, shared    uint64 // bytes: RssAnon, RssShmem of proc_pid_status(5)
	descriptors, threads int
	goroutines           int
	pins, files          int // below bpfFS, in stateDir
	interfaces           int // in the gateway's namespace
}

// take reads a sample of a running daemon.
func take(ctx context.Context, g *launch.Gateway, host *topo.Host) (s sample, err error) {
	process := filepath.Join("/proc", strconv.Itoa(g.PID()))
	status, err := os.ReadFile(filepath.Join(process, "status"))
	if err != nil {
		return s, err
	}
	if s.anonymous, err = statusField(string(status), "RssAnon"); err != nil {
		return s, err
	}
	if s.shared, err = statusField(string(status), "RssShmem"); err != nil {
		return s, err
	}
	for _, c := range []struct {
		n   *int
		dir string
	}{{&s.descriptors, filepath.Join(process, "fd")}, {&s.threads, filepath.Join(process, "task")},
		{&s.files, g.StateDir()}} {
		entries, err := os.ReadDir(c.dir)
		if err != nil {
			return s, err
		}
		*c.n = len(entries)
	}
	err = filepath.WalkDir(g.BPFFS(), func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			s.pins++
		}
		return err
	})
	if err != nil {
		return s, err
	}
	err = host.Run(func() error {
		links, err := netlink.LinkList()
		s.interfaces = len(links)
		return err
	})
	if err != nil {
		return s, err
	}
	s.goroutines, err = goroutines(ctx, host)
	return s, err
}

// statusField is a line of proc_pid_status(5) in bytes: "RssAnon:   1234 kB".
func statusField(text, name string) (uint64, error) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 3 && f[0] == name+":" {
			kib, err := strconv.ParseUint(f[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/PID/status has no %s", name)
}

// goroutines reads the daemon's metric of that.
func goroutines(ctx context.Context, host *topo.Host) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	code, text, err := host.Get(ctx, "http://127.0.0.1:9470/metrics")
	if err != nil {
		return 0, err
	}
	_, after, found := strings.Cut(text, "\ngo_goroutines ")
	if !found {
		return 0, fmt.Errorf("/metrics: status %d, and no go_goroutines", code)
	}
	n, _, _ := strings.Cut(after, "\n")
	return strconv.Atoi(n)
}
