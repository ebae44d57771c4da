package daemon

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/endpointhealth"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/gateway/flows"
	"sluice.dev/sluice/gateway/handover"
	"sluice.dev/sluice/gateway/workers"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/xdpprog"
)

// offer describes the state that the predecessor hands over besides files.
type offer struct {
	Shapes       []xsk.Shape   // of the workers' memory
	Hops         []header.Addr // next hops in use, which the successor resolves in advance
	Predecessors []string
	Checks       []endpointhealth.Known
	HostLink     bool // there is a lock on it
	// Types is an empty state from the encoder of the later state. A decoder that has read it
	// decodes the later state faster.
	Types []byte
}

// Files of an offer. The files of the shapes follow them.
const (
	fileFlows = iota
	filePins
	filePrograms // lock on the pins of programs and maps
	fileStatus   // listening
	fileHandOver // listening
	filePulse    // listening
	fileHostLink // lock, if there is one
)

// state changes until the workers stop.
type state struct {
	StoppedAt uint64 // when the first worker stopped, by CLOCK_BOOTTIME
	PausedAt  uint64 // when all had stopped
	Used      [2]uint32
	Custody   workers.Custody
}

// facts are the facts that must be equal in two processes that hand over. All other differences
// between their configurations take effect in the successor.
func facts(c *config.Configuration, frameSize int, plan *devices.Plan, table string) []handover.Fact {
	var names []string
	for i, f := range c.Interfaces {
		names = append(names, fmt.Sprintf("%s (%d queues, mode %s, zeroCopy %s)", f.Name, len(plan.Places[i]), f.Mode,
			f.ZeroCopy))
	}
	link := "none"
	if c.HostLink.Enabled() {
		user, kernel := c.Tuning.HostLinkEnds()
		link = fmt.Sprint(user, " ", kernel, " ", c.HostLink.Addresses)
	}
	namespace, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		namespace = err.Error()
	}
	return []handover.Fact{
		{What: "network namespace", Is: namespace},
		{What: "interfaces", Is: strings.Join(names, ", ")},
		{What: "sockets", Is: fmt.Sprintf("busyPoll %s, busyPollBudget %d", c.Sockets.BusyPoll,
			c.Sockets.BusyPollBudget)},
		{What: "workers", Is: fmt.Sprintf("%d with %s", plan.Workers, workers.Layout())},
		{What: "frames", Is: fmt.Sprintf("%d of %d bytes for each queue, rings of %d", c.Tuning.FramesPerQueue(),
			frameSize, c.Tuning.RingSize)},
		{What: "flow table", Is: table},
		{What: "affinity pins", Is: flows.PinsLayout(c)},
		{What: "fragments", Is: fmt.Sprintf("%d datagrams, %d held", c.Tuning.Fragments, c.Tuning.HeldFragments())},
		{What: "host link", Is: link},
		{What: "BPF maps", Is: xdpprog.MapLayout()},
		{What: "bpfFS", Is: filepath.Clean(c.BPFFS)},
	}
}

// holdGC collects garbage and turns the collector off until resume is called: a collection would
// take time of a worker, or of the hand-over while packets wait.
func holdGC() (resume func()) {
	runtime.GC()
	percent := debug.SetGCPercent(-1)
	return func() { debug.SetGCPercent(percent) }
}

// descriptors returns the descriptors of listeners. The listeners stay their owners.
func descriptors(listeners ...net.Listener) (list []int, err error) {
	for _, l := range listeners {
		c, ok := l.(syscall.Conn)
		if !ok {
			return nil, fmt.Errorf("%T has no descriptor", l)
		}
		raw, err := c.SyscallConn()
		if err != nil {
			return nil, err
		}
		if err := raw.Control(func(fd uintptr) { list = append(list, int(fd)) }); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// fileListener makes a listener of a descriptor that was received.
func fileListener(fd int) (net.Listener, error) {
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	l, err := net.FileListener(f)
	if err == nil {
		l.(*net.UnixListener).SetUnlinkOnClose(true)
	}
	return l, err
}

// backlog is the backlog of Go's own listeners if net.core.somaxconn has the kernel's default.
const backlog = 4096

// listenAgain calls listen(2) again, so that SO_PEERCRED of new clients names this process: the
// kernel gives the process that called listen last (unix_listen, net/unix/af_unix.c). Probes read
// SO_PEERCRED.
func listenAgain(listeners ...net.Listener) error {
	fds, err := descriptors(listeners...)
	for _, fd := range fds {
		err = errors.Join(err, unix.Listen(fd, backlog))
	}
	return err
}

// receiveMemory maps the memory of all workers, with their sockets.
func receiveMemory(shapes []xsk.Shape, files []int) (list []*xsk.UMEM, sockets [][]*xsk.Socket, err error) {
	for _, shape := range shapes {
		n := 1 + len(shape.Sockets)
		if len(files) < n {
			return nil, nil, errors.New("files of sockets are missing")
		}
		u, of, err := xsk.Take(shape, files[:n])
		if err != nil {
			return nil, nil, err
		}
		files, list, sockets = files[n:], append(list, u), append(sockets, of)
	}
	return list, sockets, nil
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(v)
	return b.Bytes(), err
}

func decode(b []byte, v any) error { return gob.NewDecoder(bytes.NewReader(b)).Decode(v) }
