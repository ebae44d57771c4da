package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/gateway/seed"
	"sluice.dev/sluice/host/nic/frames"
	"sluice.dev/sluice/host/sandbox"
	"sluice.dev/sluice/internal/trusted"
)

// kernel checks the kernel's version and AF_XDP.
func (e *examination) kernel() {
	switch err := config.CheckKernel(e.f.Kernel); {
	case errors.Is(err, config.ErrKernelRelease):
		e.add(Warn, "kernel", "", err.Error(), "compare `uname -r` with README's limits")
	case err != nil:
		e.add(Fail, "kernel", "", err.Error(), "boot a newer kernel; `sluice run` ends with this message")
	default:
		e.ok("kernel", "", e.f.Kernel)
	}
	switch {
	case e.f.AFXDP == nil:
		e.ok("af_xdp", "", "sockets can be made")
	case unix.EAFNOSUPPORT == e.f.AFXDP:
		e.add(Fail, "af_xdp", "", "the kernel has no AF_XDP", "use a kernel with CONFIG_XDP_SOCKETS=y")
	case unix.EPERM == e.f.AFXDP:
		e.add(Warn, "af_xdp", "", "this command may not make AF_XDP sockets", "run it as root, or give it CAP_NET_RAW")
	default:
		e.add(Fail, "af_xdp", "", "a socket cannot be made: "+e.f.AFXDP.Error(), "see dmesg")
	}
}

func (e *examination) has(bit uint) bool { return e.f.Caps&(1<<bit) != 0 }

// privileges checks the capabilities that a running gateway keeps; memlock is about CAP_IPC_LOCK.
// The kernel takes CAP_SYS_ADMIN for CAP_BPF and CAP_PERFMON, too.
func (e *examination) privileges() {
	var missing, wanted []string
	for _, c := range sandbox.Kept {
		implied := (c.Bit == unix.CAP_BPF || c.Bit == unix.CAP_PERFMON) && e.has(unix.CAP_SYS_ADMIN)
		switch text := "CAP_" + c.Name + " (" + c.Why + ")"; {
		case e.has(c.Bit), implied, c.Bit == unix.CAP_IPC_LOCK:
		case c.Bit == unix.CAP_SYS_NICE:
			wanted = append(wanted, text)
		default:
			missing = append(missing, text)
		}
	}
	level, list := Fail, missing
	if len(missing) == 0 {
		level, list = Warn, wanted
	}
	if len(list) == 0 {
		e.ok("capabilities", e.f.CapsOf, "all needed ones")
		return
	}
	e.add(level, "capabilities", e.f.CapsOf, "missing "+strings.Join(list, ", "),
		"run as root, or add them to the unit or the container")
}

func (e *examination) configuration() {
	f := e.f
	switch {
	case f.ConfigError != nil:
		e.add(Fail, "configuration", f.ConfigFile, f.ConfigError.Error(),
			"correct the file; checks that depend on it were skipped")
	case f.Config == nil:
		e.add(Warn, "configuration", "", "none given, and no daemon runs",
			"give one with --config; checks that depend on it were skipped")
	default:
		e.configErrors()
	}
	if f.Running != nil {
		for _, c := range f.Running.Conditions {
			counted := c.Name == "checksums" && f.Config != nil // checksums reports it, with the interfaces
			if c.Level != string(OK) && !counted {
				e.add(Level(c.Level), c.Name, "", c.Detail, "see `sluice status`")
			}
		}
	}
	switch {
	case f.Running != nil && f.Running.Ready:
		e.ok("daemon", "", fmt.Sprintf("running as pid %d, ready", f.Running.PID))
	case f.Running != nil:
		e.add(Warn, "daemon", "", fmt.Sprintf("running as pid %d, not ready: %s", f.Running.PID,
			strings.Join(f.Running.NotReady, "; ")), "see `sluice status`")
	case f.Socket == SocketHidden:
		e.ok("daemon", "", "not asked; the modes below follow from the drivers' features")
	default:
		e.ok("daemon", "", "not running; the modes below follow from the drivers' features")
	}
	if pid := f.OtherNetNS; pid != 0 {
		e.add(Warn, "network-namespace", "",
			"the daemon is in another one than this command: the findings below about interfaces, ports and "+
				"sysctls are not about the daemon's",
			fmt.Sprintf("repeat this command there: nsenter -t %d -n sluice doctor, with the same flags", pid))
	}
}

// checkedHere are fields that this package checks itself, with more detailed findings.
var checkedHere = []string{"interfaces[", "snat.ports", "manifests.directory"}

// configErrors reports the daemon's errors about the configuration on this host. A running daemon
// has passed these checks, perhaps with other rights and CPUs than this command.
func (e *examination) configErrors() {
	found := false
	for _, m := range e.f.ConfigErrors {
		elsewhere := slices.ContainsFunc(checkedHere, func(path string) bool {
			return strings.HasPrefix(m.Path, path)
		}) || m.Path == "stateDir" && e.f.StateRefused != nil
		if !elsewhere && e.f.Running == nil {
			found = true
			e.add(Fail, "configuration", m.Path, m.Problem, "correct the file: sluice run fails with it on this host")
		}
	}
	if !found {
		e.ok("configuration", e.f.ConfigFile, "valid")
	}
}

// startError reports why the daemon would not start on the interfaces, unless a finding has the
// same text or is about the interface that the error names.
func (e *examination) startError() {
	if e.f.StartError == nil {
		return
	}
	text := e.f.StartError.Error()
	said := slices.ContainsFunc(e.findings, func(f Finding) bool {
		names := strings.HasPrefix(text, "interface "+f.Subject+" ") || strings.HasPrefix(text, "interface "+f.Subject+
			":")
		return f.Level == Fail && (f.Found == text || names && slices.Contains([]string{"interface", "queues", "mtu",
			"driver-mode"}, f.Check))
	})
	if !said {
		e.add(Fail, "start", "interfaces", text, "correct this: sluice run ends with this message")
	}
}

// kinds are the kinds of sockets in use. Each kind registers the packet memory once (package xsk).
type kinds [3]bool

func (k *kinds) add(zeroCopy, long bool) {
	switch {
	case zeroCopy:
		k[0] = true
	case long:
		k[2] = true
	default:
		k[1] = true
	}
}

func (k *kinds) names() (list []string) {
	for i, name := range [...]string{"in zero-copy", "in copy mode", "for packets in several frames"} {
		if k[i] {
			list = append(list, name)
		}
	}
	return list
}

func (e *examination) memory() {
	c := e.f.Config
	chosen := e.frames()
	e.ok("frames", "", fmt.Sprintf("%d bytes: %s", chosen.Size, chosen.Reason))
	queues, workers := 0, 0
	var kinds kinds
	most := 0 // largest MTU
	for i := range e.f.Interfaces {
		used := e.queuesUsed(&e.f.Interfaces[i])
		if queues += used; workers == 0 || used < workers {
			workers = used
		}
		d := &e.f.Interfaces[i]
		kinds.add(e.zeroCopied(d), frames.Long(d.MTU, chosen.Size))
		most = max(most, d.MTU)
	}
	if c.HostLink.Enabled() { // a socket for each worker, in copy mode
		queues += cmp.Or(c.Workers, workers)
		kinds.add(false, frames.Long(most, chosen.Size))
	}
	umem := uint64(queues) * uint64(c.Tuning.FramesPerQueue()) * uint64(chosen.Size)
	const mib = 1 << 20
	found := fmt.Sprintf("%d MiB of packet memory", umem/mib)
	if list := kinds.names(); len(list) > 1 {
		umem *= uint64(len(list))
		found += fmt.Sprintf(", locked %s (%d MiB) because there are sockets %s",
			map[int]string{2: "twice", 3: "three times"}[len(list)], umem/mib, strings.Join(list, " and "))
	}
	found += fmt.Sprintf(", limit %s", limit(e.f.Memlock))
	switch {
	case umem <= e.f.Memlock:
		e.ok("memlock", "", found)
	case e.has(unix.CAP_IPC_LOCK):
		e.ok("memlock", "", found+"; CAP_IPC_LOCK is exempt from the limit")
	default:
		e.add(Fail, "memlock", "", found, "add CAP_IPC_LOCK, raise LimitMEMLOCK (ulimit -l), or lower tuning.ringSize")
	}
	if e.f.HugePages > 0 {
		e.ok("hugepages", "", fmt.Sprintf("%d reserved", e.f.HugePages))
	} else {
		e.ok("hugepages", "", "none reserved; small pages are used")
	}
}

func limit(bytes uint64) string {
	if bytes == unix.RLIM_INFINITY {
		return "none"
	}
	if bytes%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}

// forwarding checks whether the kernel forwards packets from the host link.
func (e *examination) forwarding() {
	if !e.f.Config.HostLink.Enabled() {
		return
	}
	for _, family := range []struct{ name, key string }{
		{"IPv4", "net.ipv4.ip_forward"}, {"IPv6", "net.ipv6.conf.all.forwarding"},
	} {
		switch v, known := e.f.Sysctls[family.key]; {
		case !known:
			e.add(Warn, "forwarding", family.name, family.key+" cannot be read",
				"make sure it is 1 if backends are behind kernel routes")
		case v == "0":
			e.add(Warn, "forwarding", family.name, family.key+" is 0",
				"backends that only the kernel reaches (overlays) get nothing: sysctl "+family.key+"=1")
		default:
			e.ok("forwarding", family.name, family.key+" is "+v)
		}
	}
}

// ports checks for other users of the node's port numbers.
func (e *examination) ports() {
	c := e.f.Config
	if port, clash := e.f.Host.ChosenByKernel(c.SNAT.Ports); clash {
		e.add(Fail, "snat-ports", c.SNAT.Ports.String(), fmt.Sprintf("the kernel also assigns port %d of it (%s)",
			port, e.f.Host.Ephemeral),
			"choose another range, or: sysctl net.ipv4.ip_local_reserved_ports="+c.SNAT.Ports.String())
	} else {
		e.ok("snat-ports", c.SNAT.Ports.String(), "outside node ports "+c.NodePortRange.String()+
			" and the kernel's own "+e.f.Host.Ephemeral.String())
	}
	e.sourcePorts()
	if in := e.listeners(func(l Listener) bool {
		return !l.Addr.Addr().IsLoopback() &&
			c.SNAT.Ports.Contains(l.Addr.Port())
	}); in != "" {
		e.add(Warn, "snat-ports", c.SNAT.Ports.String(), "sockets of the node listen in the range: "+in,
			"their traffic works, but takes a detour through user space; choose another range if it matters")
	}
	if in := e.listeners(func(l Listener) bool {
		return !l.Addr.Addr().IsLoopback() &&
			c.NodePortRange.Contains(l.Addr.Port())
	}); in != "" {
		e.add(Warn, "node-ports", c.NodePortRange.String(), "sockets of the node listen in the range: "+in,
			"packets to a Service's node port go to the Service; move the listener to another port")
	}
	e.metricsPort(c.Metrics.Address)
}

func (e *examination) metricsPort(address string) {
	if address == "" {
		e.ok("metrics-port", "", "none configured")
		return
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return // config.Validate reports this
	}
	at, _ := netip.ParseAddr(host) // without a host the zero Addr: every address
	clash := e.listeners(func(l Listener) bool {
		return l.Protocol == "tcp" && strconv.Itoa(int(l.Addr.Port())) == port &&
			(!at.IsValid() || at.IsUnspecified() || l.Addr.Addr().IsUnspecified() || l.Addr.Addr() == at)
	})
	if clash != "" && e.f.Running == nil {
		e.add(Warn, "metrics-port", address, "taken: "+clash,
			"free it or set metrics.address; forwarding works without metrics")
		return
	}
	e.ok("metrics-port", address, "free, or the daemon's own")
}

// listeners describes the matching listeners, at most a few.
func (e *examination) listeners(match func(Listener) bool) string {
	const most = 5
	var found []string
	n := 0
	for _, l := range e.f.Listeners {
		if match(l) {
			if n++; n <= most {
				found = append(found, l.Protocol+" "+l.Addr.String())
			}
		}
	}
	if n > most {
		found = append(found, fmt.Sprintf("and %d more", n-most))
	}
	return strings.Join(found, ", ")
}

// places checks files and directories.
func (e *examination) places() {
	c := e.f.Config
	switch {
	case e.f.BPFFS:
		e.ok("bpffs", c.BPFFS, "mounted")
	case e.has(unix.CAP_SYS_ADMIN):
		e.ok("bpffs", c.BPFFS, "not mounted; the daemon mounts it")
	default:
		e.add(Fail, "bpffs", c.BPFFS, "not mounted, and mounting needs CAP_SYS_ADMIN", "mount -t bpf bpf "+c.BPFFS)
	}
	e.objects()
	e.stateDir()
	e.seed()
	e.readers()
	switch e.f.Socket {
	case SocketAbsent, SocketAnswers:
		e.ok("status-socket", c.StatusSocket(), string(e.f.Socket))
	case SocketStale:
		e.ok("status-socket", c.StatusSocket(), "left by a killed daemon; the next daemon replaces it")
	case SocketHidden:
		e.add(Warn, "status-socket", c.StatusSocket(),
			"this command may not open it, so it is unknown whether a daemon runs", "run it as root")
	default:
		e.add(Fail, "status-socket", c.StatusSocket(), "it is another file, or a socket on which no daemon answers",
			"remove it, or choose another stateDir")
	}
}

// readers checks the status socket for users who may only read.
func (e *examination) readers() {
	r := &e.f.Config.Readers
	switch {
	case e.f.ReadersErr != nil:
		e.add(Warn, "readers", r.Socket, e.f.ReadersErr.Error(),
			"see the condition readers of sluice status; the daemon makes directory and socket when it starts")
	case r.Enabled():
		e.ok("readers", r.Socket, "for users of group "+r.Group)
	}
}

// objects checks the sources of Services: files, the API server, or both.
func (e *examination) objects() {
	c := e.f.Config
	switch {
	case c.Manifests.Directory == "": // config.Validate then requires an API server
	case e.f.ManifestsRefused != nil:
		e.refused("manifests", c.Manifests.Directory, e.f.ManifestsRefused)
	case e.f.Manifests:
		e.ok("manifests", c.Manifests.Directory, "there")
	default:
		e.add(Fail, "manifests", c.Manifests.Directory, "no such directory", "create it or set manifests.directory")
	}
	if !c.Kubernetes.Enabled {
		return
	}
	subject := cmp.Or(c.Kubernetes.Kubeconfig, "service account")
	switch {
	case e.f.Running != nil: // the daemon may have another file system and environment than this command
		e.ok("kubernetes", subject, "the daemon has read it; `sluice status` shows whether the API server answers")
	case e.f.API == nil:
		e.ok("kubernetes", subject, "found; doctor does not check whether the API server answers")
	case c.Kubernetes.Kubeconfig == "":
		e.add(Fail, "kubernetes", subject, e.f.API.Error(),
			"run this in the gateway's pod, or set kubernetes.kubeconfig to a file that the daemon can read")
	default:
		e.add(Fail, "kubernetes", subject, e.f.API.Error(),
			"correct kubernetes.kubeconfig or the file; kubectl --kubeconfig "+subject+
				" get services shows that it works")
	}
}

// seed checks whether clients can know the seed of backend selection, and whether other gateways
// have the same. Warnings of a running daemon are among its conditions.
func (e *examination) seed() {
	f := e.f
	if f.Running != nil {
		for _, c := range f.Running.Conditions {
			if c.Name == seed.Condition && c.Level == string(OK) {
				e.ok(seed.Condition, "", c.Detail)
			}
		}
		return
	}
	if f.SeedErr != nil && !errors.Is(f.SeedErr, seed.ErrNone) {
		e.add(Fail, seed.Condition, "", f.SeedErr.Error(), "correct the file: `sluice run` ends with this message")
		return
	}
	v := f.Seed.View()
	if v.Level == string(OK) {
		e.ok(seed.Condition, "", v.Detail)
		return
	}
	e.add(Warn, seed.Condition, "", v.Detail, "write 32 random characters or more to a file, copy it to all gateways, "+
		"and set maglev.seedFile to its path")
}

func (e *examination) stateDir() {
	dir := e.f.Config.StateDir
	do := "set stateDir to a directory under /run"
	if e.f.RunDisk {
		// By default the kernel makes a tmpfs with mode 1777, which the daemon rejects (tmpfs(5)).
		do = fmt.Sprintf("mkdir -p %s && mount -t tmpfs -o mode=0755 tmpfs %s, before the daemon starts (/run is not "+
			"a tmpfs either)", dir, dir)
	}
	switch {
	case e.f.StateRefused != nil:
		e.refused("state-dir", dir, e.f.StateRefused)
	case e.f.StateDisk:
		e.add(Warn, "state-dir", dir, "not on a tmpfs: the flow table is written to disk as long as flows change", do)
	default:
		e.ok("state-dir", dir, "in memory")
	}
}

// refused reports a directory that `sluice run` rejects, with the same text.
func (e *examination) refused(check, dir string, r *trusted.Refusal) {
	found := r.Why
	if r.Path != dir { // a directory above it
		found = r.Path + " " + r.Why
	}
	e.add(Fail, check, dir, found, r.Do)
}
