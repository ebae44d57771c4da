package config

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/trusted"
	"sluice.dev/sluice/internal/wording"
)

// Host has the facts about this machine that a configuration must fit at start.
type Host struct {
	Interfaces []string
	CPUs       []int       // on which this process may run
	Ephemeral  PortRange   // net.ipv4.ip_local_port_range
	Reserved   []PortRange // net.ipv4.ip_local_reserved_ports: never chosen by the kernel
}

// CPUs lists the CPUs that this process may run on.
func CPUs() (list []int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read the CPUs this process may use: %w", err)
	}
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			list = append(list, cpu)
		}
	}
	return list, nil
}

// ReadHost reads the host of the process's network namespace.
func ReadHost() (Host, error) {
	h := Host{}
	links, err := net.Interfaces()
	if err != nil {
		return h, fmt.Errorf("list the network interfaces: %w", err)
	}
	for _, l := range links {
		h.Interfaces = append(h.Interfaces, l.Name)
	}
	if h.CPUs, err = CPUs(); err != nil {
		return h, err
	}
	if h.Ephemeral, err = ReadEphemeral(); err != nil {
		return h, err
	}
	h.Reserved, err = readReserved("/proc/sys/net/ipv4/ip_local_reserved_ports")
	return h, err
}

// ReadEphemeral returns the range of ports that the kernel assigns to the node's own connections.
func ReadEphemeral() (PortRange, error) {
	return readEphemeral("/proc/sys/net/ipv4/ip_local_port_range")
}

// InMemory reports whether a path, or the nearest existing directory above it, is on a file system
// without a disk. If that is unknown, it returns true.
func InMemory(path string) bool {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(path, &st)
		if err == nil {
			return st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC || st.Type == unix.HUGETLBFS_MAGIC
		}
		if !errors.Is(err, unix.ENOENT) || path == filepath.Dir(path) {
			return true
		}
		path = filepath.Dir(path)
	}
}

func readEphemeral(path string) (r PortRange, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return r, fmt.Errorf("read the host's ephemeral ports: %w", err)
	}
	if err := r.UnmarshalText([]byte(strings.Join(strings.Fields(string(b)), "-"))); err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func readReserved(path string) (list []PortRange, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the host's reserved ports: %w", err)
	}
	for _, s := range strings.FieldsFunc(string(b), func(r rune) bool { return r == ',' || r == '\n' }) {
		var r PortRange
		if err := r.UnmarshalText([]byte(s)); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		list = append(list, r)
	}
	return list, nil
}

// CheckHost returns an Errors with every value that does not fit this host; name is the file's
// name, for messages.
func (c *Configuration) CheckHost(name string, h Host) error {
	k := check{}
	for i, f := range c.Interfaces {
		if !slices.Contains(h.Interfaces, f.Name) {
			k.fail(fmt.Sprintf("interfaces[%d].name", i), "no interface %s in this network namespace, choose one of %s",
				f.Name, strings.Join(h.Interfaces, ", "))
		}
	}
	for i, cpu := range c.WorkerCPUs {
		if !slices.Contains(h.CPUs, cpu) {
			k.fail(fmt.Sprintf("workerCPUs[%d]", i),
				"this process may not run on CPU %d, choose among %s (cpuset, taskset)",
				cpu, wording.Numbers(h.CPUs, ","))
		}
	}
	if port, clash := h.ChosenByKernel(c.SNAT.Ports); clash {
		k.fail("snat.ports", "is %s, but the kernel also assigns port %d of it (net.ipv4.ip_local_port_range %s): "+
			"the node's own connections would break; choose another range, or run `sysctl "+
			"net.ipv4.ip_local_reserved_ports=%s`",
			c.SNAT.Ports, port, h.Ephemeral, c.SNAT.Ports)
	}
	if s, err := os.Stat(c.Manifests.Directory); c.Manifests.Directory != "" && (err != nil || !s.IsDir()) {
		do := "create it or choose another one"
		if c.Kubernetes.Enabled {
			do = `create it, or write "" if Services come from the API server alone`
		}
		k.fail("manifests.directory", "%s is no directory, %s", c.Manifests.Directory, do)
	} else if err == nil {
		if err := trusted.Directory(c.Manifests.Directory); err != nil {
			k.fail("manifests.directory", "cannot be trusted: %v", err)
		}
	}
	k.groupHost(c, &c.Group)
	if err := c.CheckStateDir(); err != nil {
		k.fail("stateDir", "cannot be used: %v", err)
	}
	if len(k.errs) == 0 {
		return nil
	}
	for i := range k.errs {
		k.errs[i].File = name
	}
	return k.errs
}

// CheckStateDir returns why the daemon cannot use the state directory: a trusted.Refusal if others
// may write it. A missing directory is no error, because the daemon makes it; nor is a directory
// that this process may not read.
func (c *Configuration) CheckStateDir() error {
	err := trusted.StateDirectory(c.StateDir)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil
	}
	return err
}

// ChosenByKernel returns a port of r that the kernel may assign to a local socket.
func (h Host) ChosenByKernel(r PortRange) (uint16, bool) {
	for p := int(r.First); p <= int(r.Last); p++ {
		port := uint16(p)
		if h.Ephemeral.Contains(port) && !slices.ContainsFunc(h.Reserved,
			func(r PortRange) bool { return r.Contains(port) }) {
			return port, true
		}
	}
	return 0, false
}
