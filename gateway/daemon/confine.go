package daemon

import (
	"context"
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

const notConfined = "sandbox is none: the daemon keeps every right that it was started with"

// confine gives up what the daemon no longer needs, before it reads the first object or packet.
func (d *Daemon) confine(context.Context) error {
	c := d.config
	if c.Sandbox == config.SandboxNone {
		d.log.Warn(notConfined)
		return nil
	}
	needs := sandbox.Config{Mounts: d.bpffs.Mounted() || pollsByConfig(c)}
	files, err := d.filesInUse()
	if err != nil {
		return err
	}
	if !inContainer() {
		needs.Files = files
	}
	if d.sandbox, err = sandbox.Enter(needs); err != nil {
		return fmt.Errorf("sandbox: %w; sandbox: none starts without it", err)
	}
	s := d.sandbox
	d.log.Info("confined", "capabilities", s.Capabilities, "threads", s.Threads, "landlock", s.Landlock, "why",
		s.LandlockWhy)
	return nil
}

// pollsByConfig reports whether devices are set by a sysfs, which is mounted for that.
func pollsByConfig(c *config.Configuration) bool {
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

// filesInUse lists what is read and written from now on. Directories are listed, not files, as
// editors and ConfigMaps replace files; a link leads to the directory of what it names now.
func (d *Daemon) filesInUse() (*sandbox.Files, error) {
	c := d.config
	f := sandbox.Files{
		Read:       around(d.file),
		Write:      []string{c.StateDir, c.BPFFS},
		WriteFiles: []string{"/proc/sys/net", hostlink.HostProcSys},
		Remove:     []string{c.StateDir},
	}
	read := func(files ...string) {
		for _, file := range files {
			if file != "" {
				f.Read = append(f.Read, around(file)...)
			}
		}
	}
	read(c.Metrics.TLS.CertFile, c.Metrics.TLS.KeyFile, c.Metrics.TokenFile, c.Maglev.SeedFile)
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
		return nil, errors.New("kubernetes.kubeconfig: its user logs in by a program (exec), which the sandbox does " +
			"not let the daemon execute: use a client certificate or a tokenFile, or set sandbox: none")
	}
	read(c.Kubernetes.Kubeconfig, client.BearerTokenFile, client.CAFile, client.CertFile, client.KeyFile)
	return &f, nil
}

// around returns the directory of a file, and of what the file is a link to.
func around(file string) []string {
	dirs := []string{filepath.Dir(file)}
	if target, err := filepath.EvalSymlinks(file); err == nil && filepath.Dir(target) != dirs[0] {
		dirs = append(dirs, filepath.Dir(target))
	}
	return dirs
}

// sandboxCondition returns the condition that describes how the daemon is confined.
func (d *Daemon) sandboxCondition() status.ConditionView {
	s := d.sandbox
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
