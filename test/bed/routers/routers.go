// Package routers runs BIRD and FRR of Debian as routers in namespaces, for tests that need a peer
// which is not our own. Nothing is installed: packages are unpacked into the user's cache, and
// programs run by the loader and with the libraries there.
package routers

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/topo"
)

// Packages are the unpacked ones.
type Packages struct{ dir string }

// Fetch has apt download the packages, once. Progress is written to a stream.
func Fetch(ctx context.Context, progress io.Writer) (*Packages, error) {
	dir, err := cluster.FetchPackages(ctx, progress, "BIRD and FRR", "bird2", "frr")
	return &Packages{dir}, err
}

// program returns the command line of a program.
func (p *Packages) program(path string, args ...string) (string, []string) {
	return cluster.ProgramOf(p.dir, path, args...)
}

// Router is one that runs on a host.
type Router struct {
	Kind string // bird, frr
	Host *topo.Host

	packages  *Packages
	dir       string
	processes []*topo.Process
}

// stopTime is the time limit for a router's end.
const stopTime = 3 * time.Second

// BIRD starts BIRD 2 with a configuration; dir is for its files.
func (p *Packages) BIRD(h *topo.Host, dir, config string) (*Router, error) {
	r := &Router{Kind: "bird", Host: h, packages: p, dir: dir}
	file := filepath.Join(dir, "bird.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	return r, r.start("usr/sbin/bird", "-f", "-c", file, "-s", filepath.Join(dir, "bird.ctl"), "-P",
		filepath.Join(dir, "bird.pid"))
}

// CheckBIRD returns what BIRD says about a configuration that it cannot read; nothing is started.
func (p *Packages) CheckBIRD(ctx context.Context, file string) error {
	name, args := p.program("usr/sbin/bird", "-p", "-c", file)
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("bird -p: %w: %s", err, out)
	}
	return nil
}

// FRR starts zebra, bfdd and bgpd of FRR with a configuration; dir is for their files.
func (p *Packages) FRR(h *topo.Host, dir, config string) (*Router, error) {
	r := &Router{Kind: "frr", Host: h, packages: p, dir: dir}
	file := filepath.Join(dir, "frr.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "group"), []byte("root:x:0:\nfrrvty:x:64999:root\n"), 0o644); err != nil {
		return nil, err
	}
	for _, daemon := range []string{"zebra", "bfdd", "bgpd"} {
		args := []string{"-f", file, "-i", filepath.Join(dir, daemon+".pid"), "-z", filepath.Join(dir, "zserv.api"),
			"--vty_socket", dir, "-u", "root", "-g", "root", "--log", "file:" + filepath.Join(dir, daemon+".log"),
			"-P", "0"} // no TCP port for vty
		if daemon == "bfdd" {
			args = append(args, "--bfdctl", filepath.Join(dir, "bfdd.sock"))
		}
		if err := r.start("usr/lib/frr/"+daemon, args...); err != nil {
			return nil, errors.Join(err, r.Stop())
		}
		vty := filepath.Join(dir, daemon+".vty")
		if err := topo.Until(context.Background(), 10*time.Second, 5*time.Millisecond, func(context.Context) error {
			_, err := os.Stat(vty)
			return err
		}); err != nil {
			return nil, errors.Join(fmt.Errorf("%s does not start: %w: %s", daemon, err, r.Log()), r.Stop())
		}
	}
	return r, nil
}

func (r *Router) start(path string, args ...string) error {
	log, err := os.OpenFile(filepath.Join(r.dir, "out.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	name, args := r.packages.program(path, args...)
	if r.Kind == "frr" {
		name, args = "unshare", append([]string{"--mount", "--propagation", "private", "/bin/sh", "-ec", ownMounts,
			filepath.Join(r.dir, "group"), name}, args...)
	}
	p, err := r.Host.Start(topo.Command{Path: name, Args: args, Stdout: log, Stderr: log})
	if err != nil {
		return err
	}
	r.processes = append(r.processes, p)
	return nil
}

// ownMounts runs a program with a group frrvty, without which FRR does not start (lib/privs.c), and
// a /var/tmp of its own, where it makes a directory for backtraces (lib/libfrr.c).
const ownMounts = `mount --bind "$0" /etc/group; mount -t tmpfs tmpfs /var/tmp; exec "$@"`

// Stop ends it.
func (r *Router) Stop() error {
	var errs []error
	for i := len(r.processes) - 1; i >= 0; i-- {
		errs = append(errs, r.processes[i].Stop(stopTime))
	}
	r.processes = nil
	return errors.Join(errs...)
}

// Log returns the router's log.
func (r *Router) Log() string {
	var b strings.Builder
	files, _ := filepath.Glob(filepath.Join(r.dir, "*.log"))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		fmt.Fprintf(&b, "%s:\n%s\n", filepath.Base(f), text)
	}
	return b.String()
}

// Ask returns the answer to a command, of birdc, or of bgpd and, where it begins with "show bfd",
// bfdd.
func (r *Router) Ask(ctx context.Context, command string) (string, error) {
	if r.Kind == "frr" {
		daemon := "bgpd"
		if strings.HasPrefix(command, "show bfd") {
			daemon = "bfdd"
		}
		out, err := vty(ctx, filepath.Join(r.dir, daemon+".vty"), "enable", command)
		if err != nil {
			return "", fmt.Errorf("%s: %w", command, err)
		}
		return out, nil
	}
	name, args := r.packages.program("usr/sbin/birdc", append([]string{"-s", filepath.Join(r.dir, "bird.ctl")},
		strings.Fields(command)...)...)
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", command, err, out)
	}
	return string(out), nil
}

// vty sends commands to a daemon's socket as vtysh does, which itself wants PAM: each ends with a
// 0, and each answer with three of them and a status (vtysh/vtysh.c). It returns the last answer.
func vty(ctx context.Context, socket string, commands ...string) (answer string, err error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return "", err
	}
	in := bufio.NewReader(conn)
	for _, c := range commands {
		if _, err := conn.Write(append([]byte(c), 0)); err != nil {
			return "", err
		}
		var text []byte
		for !bytes.HasSuffix(text, []byte{0, 0, 0}) {
			b, err := in.ReadByte()
			if err != nil {
				return "", err
			}
			text = append(text, b)
		}
		if status, err := in.ReadByte(); err != nil || status != 0 {
			return "", fmt.Errorf("status %d: %s (%w)", status, text, err)
		}
		answer = string(text[:len(text)-3])
	}
	return answer, nil
}

// HasRoute reports whether the kernel of the host has a route to exactly this prefix.
func (r *Router) HasRoute(prefix netip.Prefix) (has bool, err error) {
	routes, err := r.routes(prefix)
	return len(routes) > 0, err
}

// NextHops returns the next hops of the kernel's route to exactly this prefix, in order; none if
// there is no route.
func (r *Router) NextHops(prefix netip.Prefix) (hops []netip.Addr, err error) {
	routes, err := r.routes(prefix)
	for i := range routes {
		if a, ok := netip.AddrFromSlice(routes[i].Gw); ok {
			hops = append(hops, a.Unmap())
		}
		for _, h := range routes[i].MultiPath {
			if a, ok := netip.AddrFromSlice(h.Gw); ok {
				hops = append(hops, a.Unmap())
			}
		}
	}
	slices.SortFunc(hops, netip.Addr.Compare)
	return hops, err
}

// Routes returns the kernel's IPv4 routes that BIRD or FRR installed, in order.
func (r *Router) Routes() (list []netip.Prefix, err error) {
	err = r.Host.Run(func() error {
		all, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN},
			netlink.RT_FILTER_TABLE)
		for i := range all {
			if all[i].Protocol == unix.RTPROT_KERNEL || all[i].Protocol == unix.RTPROT_BOOT {
				continue
			}
			p, err := netip.ParsePrefix(all[i].Dst.String())
			if err != nil {
				return err
			}
			list = append(list, p)
		}
		return err
	})
	slices.SortFunc(list, netip.Prefix.Compare)
	return list, err
}

func (r *Router) routes(prefix netip.Prefix) (list []netlink.Route, err error) {
	family := netlink.FAMILY_V4
	if prefix.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	err = r.Host.Run(func() (err error) {
		all, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN},
			netlink.RT_FILTER_TABLE)
		for _, route := range all {
			if route.Dst != nil && route.Dst.String() == prefix.String() {
				list = append(list, route)
			}
		}
		return err
	})
	return list, err
}
