//go:build root

package neigh

import (
	"context"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/internal/heartbeat"
)

// space is an anonymous network namespace with a thread in it that runs functions. It ends with the
// test or the process.
type space struct {
	t    *testing.T
	fd   int
	work chan func()
}

func newSpace(t *testing.T) *space {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: network namespaces")
	}
	s := &space{t: t, work: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			s.fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		ready <- err
		for f := range s.work {
			f()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(s.work)
		unix.Close(s.fd)
	})
	s.do(func() error { return s.up("lo") })
	return s
}

// do runs f in the namespace and fails the test on an error.
func (s *space) do(f func() error) {
	s.t.Helper()
	done := make(chan error)
	s.work <- func() { done <- f() }
	if err := <-done; err != nil {
		s.t.Fatal(err)
	}
}

func (s *space) up(dev string) error {
	l, err := netlink.LinkByName(dev)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

// veth connects dev in s with dev of peer.
func (s *space) veth(dev string, peer *space, peerDev string) {
	s.t.Helper()
	s.do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = dev
		v := netlink.NewVeth(attrs)
		v.PeerName, v.PeerNamespace = peerDev, netlink.NsFd(peer.fd)
		return netlink.LinkAdd(v)
	})
}

// address gives dev its addresses, IPv6 ones without duplicate detection, and brings it up.
func (s *space) address(dev string, prefixes ...string) {
	s.t.Helper()
	s.do(func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+dev+"/accept_dad", []byte("0"), 0o644); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
		for _, p := range prefixes {
			a, err := netlink.ParseAddr(p)
			if err != nil {
				return err
			}
			if a.IP.To4() == nil {
				a.Flags = unix.IFA_F_NODAD
			}
			if err := netlink.AddrAdd(l, a); err != nil {
				return err
			}
		}
		return nil
	})
}

// settle waits until the kernel has noticed carriers and made its IPv6 routes.
func settle(spaces ...*space) {
	for _, s := range spaces {
		s.t.Helper()
		ok := false
		for end := time.Now().Add(5 * time.Second); !ok && time.Now().Before(end); time.Sleep(time.Millisecond) {
			s.do(func() error {
				links, err := netlink.LinkList()
				ok = !slices.ContainsFunc(links, func(l netlink.Link) bool {
					return l.Type() == "veth" && l.Attrs().OperState != netlink.OperUp
				})
				if err != nil {
					return err
				}
				addrs, err := netlink.AddrList(nil, netlink.FAMILY_V6)
				ok = ok && !slices.ContainsFunc(addrs,
					func(a netlink.Addr) bool { return a.Flags&unix.IFA_F_TENTATIVE != 0 })
				return err
			})
		}
		if !ok {
			s.t.Fatal("the links do not come up")
		}
	}
}

// route adds, replaces or deletes a route by op; gw may be empty.
func (s *space) route(op func(*netlink.Route) error, dst, gw, dev string, change ...func(*netlink.Route)) {
	s.t.Helper()
	s.do(func() error {
		r := &netlink.Route{Dst: ipNet(dst)}
		if gw != "" {
			r.Gw = net.ParseIP(gw)
		}
		if dev != "" {
			l, err := netlink.LinkByName(dev)
			if err != nil {
				return err
			}
			r.LinkIndex = l.Attrs().Index
		}
		for _, c := range change {
			c(r)
		}
		return op(r)
	})
}

func (s *space) setMAC(dev, mac string) {
	s.t.Helper()
	s.do(func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		hw, err := net.ParseMAC(mac)
		if err != nil {
			return err
		}
		return netlink.LinkSetHardwareAddr(l, hw)
	})
}

func (s *space) mac(dev string) (mac [6]byte) {
	s.t.Helper()
	s.do(func() error {
		l, err := netlink.LinkByName(dev)
		if err == nil {
			copy(mac[:], l.Attrs().HardwareAddr)
		}
		return err
	})
	return mac
}

// follow starts a mirror in the namespace and waits for its first View.
func (s *space) follow(c Config) *mirror {
	s.t.Helper()
	return s.followWith(c, openKernel)
}

// followWith is follow with a function that opens the kernel.
func (s *space) followWith(c Config, open func(*slog.Logger, *heartbeat.Beat) (kernel, error)) *mirror {
	s.t.Helper()
	c.Table = nexthop.NewTable()
	c.Logger = slog.New(slog.NewTextHandler(s.t.Output(), nil))
	m, err := New(c)
	if err != nil {
		s.t.Fatal(err)
	}
	m.open = open
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread stays in the namespace
		if err := unix.Setns(s.fd, unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- m.Run(ctx)
	}()
	s.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("Run: %v", err)
		}
	})
	select {
	case <-m.Ready():
	case err := <-done:
		done <- nil
		s.t.Fatal(err)
	}
	return &mirror{m, s.t, c.Table}
}

// eventually waits until ok is true, for at most a second, in which the mirror must apply every
// change. The second is a thousand pauses of a millisecond, which take longer if this goroutine
// shares its CPU.
func (m *mirror) eventually(what string, ok func() bool) time.Duration {
	m.t.Helper()
	began := time.Now()
	for range 1000 {
		if ok() {
			return time.Since(began)
		}
		time.Sleep(time.Millisecond)
	}
	m.t.Fatalf("not within a second: %s", what)
	return 0
}

// resolved requests a destination repeatedly, like a worker, until the hop is ready.
func (m *mirror) resolved(dst string) (*nexthop.Hop, nexthop.ID) {
	m.t.Helper()
	var id nexthop.ID
	m.eventually("next hop of "+dst, func() bool {
		if id = m.lookup(dst).Hop; id != 0 && m.table.Hop(id).Ready {
			return true
		}
		m.table.Resolve(addr(dst))
		return false
	})
	return m.table.Hop(id), id
}
