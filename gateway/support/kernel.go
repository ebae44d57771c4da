package support

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/host/nic/ethtool"
)

// kernelFiles are facts of the kernel that are text already.
var kernelFiles = []string{
	"/proc/version", "/proc/uptime", "/proc/loadavg", "/proc/meminfo", "/proc/interrupts", "/proc/softirqs",
	"/proc/net/softnet_stat", "/proc/net/dev", "/proc/net/snmp", "/proc/net/sockstat",
	"/proc/pressure/cpu", "/proc/pressure/memory", "/sys/kernel/security/lsm",
}

func writeKernel(_ context.Context, w io.Writer) (err error) {
	for _, path := range kernelFiles {
		text, readErr := os.ReadFile(path)
		if readErr != nil {
			text = []byte(readErr.Error() + "\n")
		}
		fmt.Fprintf(w, "==== %s\n", path)
		if _, err = w.Write(text); err != nil {
			return err
		}
	}
	return nil
}

// sysctls are the directories of settings that concern forwarding.
var sysctls = []string{"/proc/sys/net/core", "/proc/sys/net/ipv4", "/proc/sys/net/ipv6", "/proc/sys/vm/nr_hugepages",
	"/proc/sys/kernel/osrelease", "/proc/sys/net/netfilter/nf_conntrack_max"}

// writeSysctls writes readable settings. Neighbour tables' settings of each device are left out.
func writeSysctls(ctx context.Context, w io.Writer) error {
	for _, root := range sysctls {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err != nil:
				return nil // another kernel does not have it
			case d.IsDir() && d.Name() == "neigh":
				return fs.SkipDir
			case d.IsDir() || strings.Contains(path, "secret") || strings.Contains(path, "fastopen_key"):
				return nil
			}
			if text, err := os.ReadFile(path); err == nil {
				name := strings.ReplaceAll(strings.TrimPrefix(path, "/proc/sys/"), "/", ".")
				_, err := fmt.Fprintf(w, "%s = %s\n", name, strings.TrimSpace(string(text)))
				return err
			}
			return nil // it can only be written
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// nic is an interface of this network namespace.
type nic struct {
	Name, Kind, State, Driver string
	MTU, Index                int
	Queues                    [2]int // transmit, receive
	XDP                       *netlink.LinkXdp
	Channels                  *ethtool.Channels `json:",omitempty"`
	Rings                     *ethtool.Rings    `json:",omitempty"`
	Features                  map[string]bool   `json:",omitempty"`
	Statistics                map[string]uint64 `json:",omitempty"`
	Counters                  *netlink.LinkStatistics
	Errors                    []string `json:",omitempty"`
}

func writeNICs(ctx context.Context, w io.Writer) error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	var list []nic
	for _, l := range links {
		if ctx.Err() != nil {
			break
		}
		list = append(list, readNIC(l))
	}
	return errors.Join(writeJSON(w, list), context.Cause(ctx))
}

func readNIC(l netlink.Link) nic {
	a := l.Attrs()
	n := nic{Name: a.Name, Kind: l.Type(), State: a.OperState.String(), MTU: a.MTU, Index: a.Index,
		Queues: [2]int{a.NumTxQueues, a.NumRxQueues}, XDP: a.Xdp, Counters: a.Statistics}
	note := func(err error) {
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			n.Errors = append(n.Errors, err.Error())
		}
	}
	var err error
	n.Driver, err = ethtool.Driver(a.Name)
	note(err)
	channels, err := ethtool.ReadChannels(a.Name)
	if note(err); err == nil {
		n.Channels = &channels
	}
	rings, err := ethtool.ReadRings(a.Name)
	if note(err); err == nil {
		n.Rings = &rings
	}
	n.Features, err = ethtool.Features(a.Name)
	note(err)
	n.Statistics, err = ethtool.Statistics(a.Name)
	note(err)
	return n
}

// maxLines bounds routes, neighbours and entries of a map.
const maxLines = 20_000

func writeRoutes(ctx context.Context, w io.Writer) error {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	return writeLines(ctx, w, routes)
}

func writeNeighbours(ctx context.Context, w io.Writer) error {
	list, err := netlink.NeighList(0, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	return writeLines(ctx, w, list)
}

func writeAddresses(ctx context.Context, w io.Writer) error {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	return writeLines(ctx, w, list)
}

func writeLines[T any](ctx context.Context, w io.Writer, list []T) error {
	for i := range list {
		if i == maxLines {
			return fmt.Errorf("the first %d of %d", maxLines, len(list))
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, err := fmt.Fprintln(w, &list[i]); err != nil {
			return err
		}
	}
	return nil
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(v)
}

// maps writes the maps that are pinned below a directory, keys and values in hex as they are in
// memory. Entries of arrays that are zero are left out.
func maps(ctx context.Context, w io.Writer, dir string) error {
	found := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
		if err != nil {
			return nil // a program or a link
		}
		defer m.Close()
		found++
		return writeMap(ctx, w, path, m)
	})
	if err == nil && found == 0 {
		err = errors.New("no map is pinned in " + dir)
	}
	return err
}

func writeMap(ctx context.Context, w io.Writer, path string, m *ebpf.Map) error {
	_, err := fmt.Fprintf(w, "==== %s: %v, keys of %d bytes, values of %d, at most %d entries\n", path, m.Type(),
		m.KeySize(), m.ValueSize(), m.MaxEntries())
	if err != nil {
		return err
	}
	var key, value []byte
	var all [][]byte // of a map with a value for each CPU
	to := any(&value)
	if perCPU(m.Type()) {
		to = &all
	}
	entries, n := m.Iterate(), 0
	for entries.Next(&key, to) {
		if n++; n > maxLines || ctx.Err() != nil {
			_, err := fmt.Fprintf(w, "the rest is left out after %d\n", n-1)
			return errors.Join(err, context.Cause(ctx))
		}
		if to == any(&value) {
			all = [][]byte{value}
		}
		if zero(all) && m.Type() != ebpf.Hash {
			continue
		}
		if _, err := fmt.Fprintf(w, "%x %x\n", key, all); err != nil {
			return err
		}
	}
	if err := entries.Err(); err != nil { // such as a map of sockets
		_, err := fmt.Fprintln(w, err)
		return err
	}
	return nil
}

func perCPU(t ebpf.MapType) bool {
	return t == ebpf.PerCPUArray || t == ebpf.PerCPUHash || t == ebpf.LRUCPUHash
}

func zero(list [][]byte) bool {
	for _, b := range list {
		for _, x := range b {
			if x != 0 {
				return false
			}
		}
	}
	return true
}
