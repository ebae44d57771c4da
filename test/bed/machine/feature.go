package machine

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Feature is something that a kernel may lack, and the module it is in.
type Feature struct {
	Name, Module string

	probe func() error // in a network namespace of its own
}

// Features that tests need. A probe loads the feature's module where the kernel finds it.
var (
	SCTP   = Feature{"SCTP sockets", "sctp", probeSCTP}
	Netem  = Feature{"the qdisc netem", "sch_netem", probeNetem}
	VLAN   = Feature{"802.1Q devices", "8021q", probeVLAN}
	Pktgen = Feature{"the packet generator pktgen", "pktgen", probePktgen}
	IPVS   = Feature{"IP virtual server", "ip_vs", probeIPVS}
	IPSet  = Feature{"IP sets", "ip_set", probeIPSet}
)

// Missing returns what about the feature the kernel lacks; nil if it has it.
func (f Feature) Missing() error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread, and its namespace, end with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("create network namespace (CAP_SYS_ADMIN is needed): %w", err)
			return
		}
		done <- f.probe()
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("this kernel lacks %s (module %s): %w", f.Name, f.Module, err)
	}
	return nil
}

// tester is the part of testing.TB that this package needs.
type tester interface {
	Helper()
	Skip(...any)
	Fatal(...any)
}

// Need skips a test where the kernel lacks a feature, and fails it there if tests must not be
// skipped.
func Need(t tester, features ...Feature) {
	t.Helper()
	for _, f := range features {
		err := f.Missing()
		switch {
		case err == nil:
		case os.Getenv(noSkipVariable) == "1":
			t.Fatal(err, "("+noSkipVariable+" is set)")
		default:
			t.Skip(err)
		}
	}
}

func probeSCTP() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	return unix.Close(fd)
}

func probeNetem() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	attrs := netlink.QdiscAttrs{LinkIndex: lo.Attrs().Index, Handle: netlink.MakeHandle(1, 0),
		Parent: netlink.HANDLE_ROOT}
	return netlink.QdiscAdd(netlink.NewNetem(attrs, netlink.NetemQdiscAttrs{Loss: 1}))
}

func probeVLAN() error {
	lower := netlink.NewLinkAttrs()
	lower.Name = "lower"
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: lower}); err != nil {
		return err
	}
	link, err := netlink.LinkByName(lower.Name)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex = "upper", link.Attrs().Index
	return netlink.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: 2})
}

// probePktgen cannot have the module loaded: nothing but modprobe does.
func probePktgen() error {
	_, err := os.Stat("/proc/thread-self/net/pktgen")
	if errors.Is(err, os.ErrNotExist) {
		return errors.New("there is no /proc/net/pktgen; modprobe pktgen")
	}
	return err
}

// probeIPVS looks up the generic netlink family that IPVS is configured by.
func probeIPVS() error {
	_, err := netlink.GenlFamilyGet("IPVS")
	return err
}

func probeIPSet() error {
	_, _, err := netlink.IpsetProtocol()
	return err
}
