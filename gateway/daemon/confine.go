package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/host/hostlink"
	"sluice.dev/sluice/host/sandbox"
	"sluice.dev/sluice/internal/kubeconfig"
	"sluice.dev/sluice/serve/status"
)

const notConfined = "sandbox is none: the daemon keeps all rights that it was started with"

// confine gives up the rights that the daemon no longer needs, before it reads the first object or
// packet. It returns nil if the configuration has no sandbox. mounted: the daemon has mounted
// bpfFS.
func confine(set *settings, mounted bool) (*sandbox.State, error) {
	c, log := set.config(), set.log
	if c.Sandbox == config.SandboxNone {
		log.Warn(notConfined)
		return nil, nil
	}
	needs := sandbox.Config{Mounts: mounted || setsDevices(c)}
	files, err := filesInUse(c, set.file)
	if err != nil {
		return nil, err
	}
	if !inContainer() {
		needs.Files = files
	}
	s, err := sandbox.Enter(needs)
	if err != nil {
		return nil, fmt.Errorf("sandbox: %w; sandbox: none starts without it", err)
	}
	log.Info("confined", "capabilities", s.Capabilities, "threads", s.Threads, "landlock", s.Landlock, "why",
		s.LandlockWhy)
	return s, nil
}

// setsDevices reports whether the daemon writes settings of devices. It mounts a sysfs to do so.
func setsDevices(c *config.Configuration) bool {
	for _, i := range c.Interfaces {
		if i.NAPI != (config.NAPI{Threaded: config.ThreadedKeep}) {
			return true
		}
	}
	return false
}

// inContainer reports whether a container runtime started the daemon: container is what systemd's
// container interface asks of runtimes, and KUBERNETES_SERVICE_HOST is in every pod.
func inContainer() bool {
	for _, file := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(file); err == nil {
			return true
		}
	}
	return os.Getenv("container") != "" || os.Getenv("KUBERNETES_SERVICE_HOST") != ""
}

// filesInUse lists the files that the daemon reads and writes from now on. It lists directories,
// because editors and ConfigMaps replace files. A link adds the directory of its present target.
func filesInUse(c *config.Configuration, file string) (*sandbox.Files, error) {
	f := sandbox.Files{
		Read:       around(file),
		Write:      []string{c.StateDir, c.BPFFS},
		WriteFiles: []string{"/proc/sys/net", hostlink.HostProcSys},
		Remove:     []string{c.StateDir},
	}
	read := func(files ...string) {
		for _, name := range files {
			if name != "" {
				f.Read = append(f.Read, around(name)...)
			}
		}
	}
	read(c.Metrics.TLS.CertFile, c.Metrics.TLS.KeyFile, c.Metrics.TokenFile, c.Maglev.SeedFile)
	if c.Group.Enabled() {
		read(c.Group.TLS.CertFile, c.Group.TLS.KeyFile, c.Group.TLS.CAFile)
		f.Write = append(f.Write, c.Group.StateDir)
	}
	if c.Readers.Enabled() {
		f.Write = append(f.Write, filepath.Dir(c.Readers.Socket))
	}
	if c.FlowLog.Enabled() {
		_ = os.MkdirAll(c.FlowLog.Directory, 0o700) // a failure shows when the log is written
		f.Write = append(f.Write, c.FlowLog.Directory)
	}
	if c.Manifests.Directory != "" {
		f.Read = append(f.Read, c.Manifests.Directory)
	}
	if !c.Kubernetes.Enabled {
		return &f, nil
	}
	client, err := kubeconfig.Load(c.Kubernetes.Kubeconfig, "kubernetes.kubeconfig")
	if err != nil {
		return nil, err
	}
	if client.ExecProvider != nil {
		return nil, errors.New("kubernetes.kubeconfig: its user logs in by a program (exec), which the daemon may " +
			"not execute in the sandbox: use a client certificate or a tokenFile, or set sandbox: none")
	}
	read(c.Kubernetes.Kubeconfig, client.BearerTokenFile, client.CAFile, client.CertFile, client.KeyFile)
	return &f, nil
}

// around returns the directory of a file, and the directory of its target if it is a link.
func around(file string) []string {
	dirs := []string{filepath.Dir(file)}
	if target, err := filepath.EvalSymlinks(file); err == nil && filepath.Dir(target) != dirs[0] {
		dirs = append(dirs, filepath.Dir(target))
	}
	return dirs
}

// sandboxCondition describes the sandbox; nil is none.
func sandboxCondition(s *sandbox.State) status.ConditionView {
	if s == nil {
		return status.Warning("sandbox", notConfined)
	}
	landlock := "Landlock"
	if !s.Landlock {
		landlock = "no Landlock: " + s.LandlockWhy
	}
	return status.OK("sandbox", fmt.Sprintf(
		"no_new_privs, seccomp, capabilities %s; %s", strings.Join(s.Capabilities, " "), landlock))
}
