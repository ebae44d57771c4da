package doctor

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/gateway/seed"
	"sluice.dev/sluice/host/nic/irq"
	"sluice.dev/sluice/host/placement"
	"sluice.dev/sluice/internal/trusted"
	"sluice.dev/sluice/serve/status"
)

// Read reads the facts. If file is empty, it uses the running daemon's configuration. It returns an
// error only for facts that every host must have.
func Read(ctx context.Context, file, socket string) (*Facts, error) {
	f := &Facts{ConfigFile: file, CPUs: 1, Sysctls: map[string]string{}}
	f.readDaemon(ctx, socket)
	if f.ConfigFile == "" && f.Running != nil {
		f.ConfigFile = f.Running.Config.File
	}
	if f.ConfigFile != "" {
		f.Config, f.ConfigError = config.Load(f.ConfigFile)
	}
	if err := f.readKernel(); err != nil {
		return nil, err
	}
	var err error
	if f.Host, err = config.ReadHost(); err != nil {
		return nil, err
	}
	f.CPUs = max(1, len(f.Host.CPUs))
	f.Listeners, f.Addresses = readListeners("/proc/net"), readAddresses()
	if f.Config != nil {
		errors.As(f.Config.CheckHost(f.ConfigFile, f.Host), &f.ConfigErrors)
		f.readConfigured(f.Config)
		if f.Running != nil && f.Config.DirectReturn.VNI != 0 {
			f.readTunnel(ctx, socket)
		}
	}
	return f, nil
}

func (f *Facts) readDaemon(ctx context.Context, socket string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	client := status.NewClient(socket)
	view, err := client.Status(ctx, false)
	if err != nil {
		f.RunningErr = err
		return
	}
	f.Running = &view
	if stats, err := client.Stats(ctx); err == nil { // otherwise their CPUs follow from the configuration
		f.Workers = stats.Workers
	}
	f.PortsInUse, f.PortsError = client.SourcePorts(ctx)
	f.OtherNetNS = otherNamespace(daemonPID(socket))
}

// readAddresses returns the addresses of this network namespace.
func readAddresses() (list []netip.Addr) {
	found, err := net.InterfaceAddrs()
	if err != nil {
		return nil // then all addresses count as the gateway's own
	}
	for _, a := range found {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			list = append(list, p.Addr())
		}
	}
	return list
}

// daemonPID returns the daemon's pid in this command's PID namespace, which differs from the pid in
// the daemon's status if it runs in a pod; 0 if it has none here.
func daemonPID(socket string) int {
	pid, err := status.PeerPID(socket)
	if err != nil {
		return 0
	}
	return pid
}

// otherNamespace returns pid if its network namespace is known to differ from this command's; else
// 0.
func otherNamespace(pid int) int {
	ours, err1 := os.Readlink("/proc/thread-self/ns/net")
	its, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if pid == 0 || err1 != nil || err2 != nil || ours == its {
		return 0
	}
	return pid
}

// Files and variables of a pod's service account, as client-go reads them (rest.InClusterConfig).
const (
	accountToken = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	apiHost      = "KUBERNETES_SERVICE_HOST"
	apiPort      = "KUBERNETES_SERVICE_PORT"
)

// readAPI returns an error if the credentials for the API server are missing. It does not connect
// to the API server.
func readAPI(kubeconfig, token string) error {
	if kubeconfig == "" {
		kubeconfig = token
		if os.Getenv(apiHost) == "" || os.Getenv(apiPort) == "" {
			return fmt.Errorf("%s and %s are not both set: this is not a pod", apiHost, apiPort)
		}
	}
	f, err := os.Open(kubeconfig)
	if err != nil {
		return err
	}
	defer f.Close()
	if n, err := f.Read(make([]byte, 1)); n == 0 {
		return fmt.Errorf("read %s: %w", kubeconfig, err)
	}
	return nil
}

func (f *Facts) readKernel() error {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return fmt.Errorf("read the kernel's version: %w", err)
	}
	f.Kernel = unix.ByteSliceToString(uts.Release[:])
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if f.AFXDP = err; err == nil {
		unix.Close(fd)
	}
	pid, caps := "self", "this command"
	if f.Running != nil {
		pid, caps = strconv.Itoa(f.Running.PID), fmt.Sprintf("daemon, pid %d", f.Running.PID)
	}
	bits, err := readCaps(filepath.Join("/proc", pid, "status"))
	if err != nil {
		return err
	}
	f.Caps, f.CapsOf = bits, caps
	var memlock unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &memlock); err != nil {
		return fmt.Errorf("read the limit of locked memory: %w", err)
	}
	f.Memlock = memlock.Cur
	// The file is missing if the kernel has no huge pages.
	pages, _ := os.ReadFile("/proc/sys/vm/nr_hugepages")
	f.HugePages, _ = strconv.Atoi(strings.TrimSpace(string(pages)))
	return nil
}

// readCaps reads the effective capabilities of a process.
func readCaps(path string) (uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("read the capabilities: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			return strconv.ParseUint(strings.TrimSpace(v), 16, 64)
		}
	}
	return 0, fmt.Errorf("read the capabilities: %s has no line CapEff", path)
}

// readConfigured reads the facts about devices, files and ports that the configuration names.
func (f *Facts) readConfigured(c *config.Configuration) {
	var st unix.Statfs_t
	f.BPFFS = unix.Statfs(c.BPFFS, &st) == nil && st.Type == unix.BPF_FS_MAGIC
	s, err := os.Stat(c.Manifests.Directory)
	if f.Manifests = err == nil && s.IsDir(); f.Manifests {
		f.ManifestsRefused = refusal(trusted.Directory(c.Manifests.Directory))
	}
	if c.Kubernetes.Enabled {
		f.API = readAPI(c.Kubernetes.Kubeconfig, accountToken)
	}
	f.StateRefused = refusal(c.CheckStateDir())
	f.Seed, f.SeedErr = seed.Find(c)
	f.StateDisk, f.RunDisk = !config.InMemory(c.StateDir), !config.InMemory("/run")
	f.Socket = readSocket(c.StatusSocket())
	f.ReadersErr = readersError(c, f.Running != nil)
	for _, key := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding", "net.ipv4.conf.all.rp_filter"} {
		f.readSysctl(key, "")
	}
	var names []string
	for _, i := range c.Interfaces {
		names = append(names, i.Name)
		f.readSysctl("net.ipv4.conf.%s.rp_filter", i.Name)
		f.Interfaces = append(f.Interfaces, readInterface(i.Name))
	}
	f.Machine = placement.Read(irq.Host, names, f.Host.CPUs)
}

// refusal returns err if it is a trusted.Refusal, else nil: other errors are about paths that do
// not exist yet.
func refusal(err error) (r *trusted.Refusal) {
	errors.As(err, &r)
	return r
}

// readSysctl reads a sysctl; name, an interface, may contain dots.
func (f *Facts) readSysctl(key, name string) {
	path := "/proc/sys/" + strings.ReplaceAll(key, ".", "/")
	if name != "" {
		path, key = fmt.Sprintf(path, name), fmt.Sprintf(key, name)
	}
	if b, err := os.ReadFile(path); err == nil {
		f.Sysctls[key] = strings.TrimSpace(string(b))
	}
}

// readersError returns why users of readers.group cannot open their socket.
func readersError(c *config.Configuration, running bool) error {
	if !c.Readers.Enabled() {
		return nil
	}
	gid, err := c.Readers.GroupID()
	if err != nil || !running {
		return err
	}
	for _, file := range []struct {
		path string
		bit  uint32 // of the group
	}{{filepath.Dir(c.Readers.Socket), 0o010}, {c.Readers.Socket, 0o020}} {
		var st unix.Stat_t
		switch err := unix.Stat(file.path, &st); {
		case errors.Is(err, fs.ErrPermission): // this user is none of them
		case err != nil:
			return fmt.Errorf("%s: %w", file.path, err)
		case st.Mode&(file.bit>>3) == 0 && (int(st.Gid) != gid || st.Mode&file.bit == 0):
			return fmt.Errorf("%s has group %d and mode %04o: group %d may not open it", file.path, st.Gid,
				st.Mode&0o7777, gid)
		}
	}
	return nil
}

func readSocket(path string) SocketState {
	s, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return SocketAbsent
	}
	if errors.Is(err, fs.ErrPermission) {
		return SocketHidden
	}
	if err != nil || s.Mode()&fs.ModeSocket == 0 {
		return SocketObstacle
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		conn.Close()
		return SocketAnswers
	case errors.Is(err, syscall.ECONNREFUSED):
		return SocketStale
	case errors.Is(err, fs.ErrPermission):
		return SocketHidden
	}
	return SocketObstacle
}

// readListeners lists listening TCP sockets, and UDP sockets that are bound and not connected. It
// leaves out lists that cannot be read: they serve only for advice.
func readListeners(procNet string) []Listener {
	var list []Listener
	for _, file := range []struct{ name, protocol, state string }{
		// The states of include/net/tcp_states.h; a UDP socket without a peer is in TCP_CLOSE.
		{"tcp", "tcp", "0A"}, {"tcp6", "tcp", "0A"}, {"udp", "udp", "07"}, {"udp6", "udp", "07"},
	} {
		f, err := os.Open(filepath.Join(procNet, file.name))
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) < 4 || fields[3] != file.state {
				continue
			}
			if ap, ok := parseProcAddr(fields[1]); ok {
				list = append(list, Listener{file.protocol, ap})
			}
		}
		f.Close()
	}
	slices.SortFunc(list, func(a, b Listener) int { return a.Addr.Compare(b.Addr) })
	return slices.CompactFunc(list, func(a, b Listener) bool { return a == b })
}

// parseProcAddr parses an address of /proc/net/tcp: 32-bit words in the host's byte order, here
// little-endian, in hex, a colon, the port.
func parseProcAddr(s string) (netip.AddrPort, bool) {
	address, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(address)
	p, perr := strconv.ParseUint(port, 16, 16)
	if err != nil || perr != nil || len(b)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(b); i += 4 {
		slices.Reverse(b[i : i+4])
	}
	a, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a, uint16(p)), ok
}
