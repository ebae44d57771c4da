package guest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// Config selects what to try, and on what.
type Config struct {
	Sluice string // the daemon's binary
	// Left and Right are the modes that the NICs of these names must be in.
	Left, Right Mode
	Options     string // more of the gateway's configuration: YAML, whole top-level fields
	MTU         int    // of both segments; 0 is 1500
	// VLAN tags packets on both segments: the addresses are on VLAN devices of left and right.
	VLAN  VLAN
	Cases []string // names, in order; without start the daemon does not run
	Bytes int64    // of each TCP transfer
	Kills int
	// TakeOvers are how often the next daemon takes over from the one that runs.
	TakeOvers int
	Patience  int // multiplies every bound of time

	Results io.Writer // a Result a line, as JSON
	Log     io.Writer // what people look at where something failed
}

// Mode is how packets of a NIC reach the gateway.
type Mode string

// The modes, from the fastest.
const (
	ZeroCopy Mode = "zero-copy"
	Copy     Mode = "copy"    // native XDP, packets are copied into the UMEM
	Generic  Mode = "generic" // XDP behind the driver, and copies
)

// VLAN selects tagged packets, and whether the gateway or VLAN devices below it handle the tags.
type VLAN string

// Where tags are dealt with.
const (
	Untagged VLAN = ""
	Gateway  VLAN = "gateway" // is given the NICs, and handles tags itself
	Devices  VLAN = "devices" // is given the VLAN devices, below which the kernel does
)

// Result is what became of a case.
type Result struct {
	Case   string
	OK     bool
	Detail string // the result, or the reason for the failure
	Modes  string // of both NICs
	Millis int64
}

// test is a case: it returns the text for the table.
type test func(*lab) (detail string, err error)

// The NICs' names.
const (
	left, right = "left", "right"
)

// startCase is what all cases behind it need.
const startCase = "start"

// tests are all cases.
var tests = map[string]test{
	"doctor":  (*lab).doctor,
	startCase: (*lab).start,
	"connect": (*lab).connect,
	"tcp4":    func(l *lab) (string, error) { return l.transfers(vip4) },
	"tcp6":    func(l *lab) (string, error) { return l.transfers(vip6) },
	"udp4":    func(l *lab) (string, error) { return l.sizes(vip4) },
	"udp6":    func(l *lab) (string, error) { return l.sizes(vip6) },
	"local":   (*lab).localEndpoints,
	"kill":    (*lab).kills,
	"upgrade": (*lab).takeOvers,
	"link":    (*lab).linkDownUp,
	"rings":   (*lab).rings,
	"rss":     (*lab).rss,
	"spread":  (*lab).spread,
	"gro":     (*lab).groOff,
	"mtu":     (*lab).mtuChanges,
	"queues":  (*lab).fewerQueues,
	"more":    (*lab).moreQueues,
	"unbind":  (*lab).unbindBind,
	"native":  (*lab).nativeRefused,
	"generic": (*lab).genericMode,
	"one":     (*lab).oneQueue,
	"laws":    (*lab).laws,
	"stop":    (*lab).stop,
	"refused": (*lab).refused,
}

// Known reports whether there is a case of this name.
func Known(name string) bool { return tests[name] != nil }

// ErrFailed is returned by Run where a case failed; the results say which.
var ErrFailed = errors.New("a case failed")

// lab is the network and the gateway in it.
type lab struct {
	Config
	*topo.Net
	ctx     context.Context
	gate    *launch.Gateway
	damage  map[*topo.Host]topo.Counters
	modes   string
	started bool
}

// Run builds the network, runs the cases, and writes a result for each.
func Run(ctx context.Context, c Config) (err error) {
	for _, name := range c.Cases {
		if !Known(name) {
			return fmt.Errorf("no case %q", name)
		}
	}
	c.Patience, c.MTU = max(1, c.Patience), cmp.Or(c.MTU, etherMTU)
	l := &lab{Config: c, ctx: ctx, damage: map[*topo.Host]topo.Counters{}}
	defer func() { err = errors.Join(err, l.close()) }()
	if err := l.build(); err != nil {
		return err
	}
	failed := false
	for _, name := range c.Cases {
		ok := l.try(name)
		failed = failed || !ok
		if name == startCase && !l.started {
			break
		}
	}
	if failed {
		return ErrFailed
	}
	return nil
}

// try runs a case and writes its result.
func (l *lab) try(name string) bool {
	fmt.Fprintf(l.Log, "== %s\n", name)
	began := time.Now()
	detail, err := tests[name](l)
	r := Result{Case: name, OK: err == nil, Detail: detail, Modes: l.modes, Millis: time.Since(began).Milliseconds()}
	if err != nil {
		r.Detail = firstLine(err.Error())
		fmt.Fprintf(l.Log, "%v\n", err)
		l.explain()
	}
	line, err := json.Marshal(r)
	if err == nil {
		_, err = fmt.Fprintf(l.Results, "%s\n", line)
	}
	if err != nil {
		fmt.Fprintln(l.Log, err)
		return false
	}
	return r.OK
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// patience is a bound of time in the guest.
func (l *lab) patience(d time.Duration) time.Duration { return time.Duration(l.Patience) * d }

// explain prints statistics, NIC counters and the daemon's log after a failed case.
func (l *lab) explain() {
	if s, err := l.gate.Client.Stats(l.ctx); err == nil {
		text, _ := json.Marshal(s) // of plain fields
		fmt.Fprintf(l.Log, "statistics: %s\n", text)
	}
	for _, nic := range [...]string{left, right} {
		if err := l.ethtool("-S", nic); err != nil {
			fmt.Fprintln(l.Log, err)
		}
	}
	fmt.Fprintf(l.Log, "daemon:\n%s\n", l.gate.Log())
}

func (l *lab) close() (err error) {
	if l.gate != nil {
		err = l.gate.Close()
	}
	if l.Net != nil {
		err = errors.Join(err, l.Net.Close())
	}
	return err
}

// modeOf is how an interface's packets reach the gateway; queues of different modes make it an
// error.
func modeOf(i *status.InterfaceView) (Mode, string, error) {
	mode := Copy
	if i.Mode == "generic" {
		mode = Generic
	}
	if len(i.Queues) == 0 {
		return "", "", fmt.Errorf("%s has no queue", i.Name)
	}
	for n, q := range i.Queues {
		of := mode
		if q.ZeroCopy {
			of = ZeroCopy
		}
		if !q.Bound || n > 0 && q.ZeroCopy != i.Queues[0].ZeroCopy {
			return "", "", fmt.Errorf("%s: queues differ, or are not bound: %+v", i.Name, i.Queues)
		}
		if n == len(i.Queues)-1 {
			return of, i.Why(&q), nil
		}
	}
	panic("unreachable: the loop returns at the last queue")
}
