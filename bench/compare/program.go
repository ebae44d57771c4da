package compare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/internal/wording"
	"sluice.dev/sluice/test/bed/topo"
)

// program is a forwarding process in the gateway's namespace.
type program struct {
	path   string
	args   []string
	queues int
	cpus   []int

	process *topo.Process
	log     bytes.Buffer // valid once the process has ended
}

// programTimeout bounds the time until a program forwards, and the time until it ends: the asavie
// library detaches its program in steps of a second.
const programTimeout = 15 * time.Second

func (x *program) start(ctx context.Context, p *place) (err error) {
	args := append(x.args,
		"--in", frontDev, "--out", backDev,
		"--next-in", p.mac(p.client).String(), "--next-out", p.mac(p.server).String(),
		"--queues", strconv.Itoa(x.queues), "--cpus", wording.Numbers(x.cpus, ","))
	x.process, err = p.gateway.Start(topo.Command{Path: x.path, Args: args, Stdout: &x.log, Stderr: &x.log})
	if err != nil {
		return err
	}
	return topo.Until(ctx, programTimeout, 5*time.Millisecond, func(context.Context) error {
		select {
		case <-x.process.Done():
			return topo.Final(fmt.Errorf("%s ended: %w", filepath.Base(x.path), x.process.Err()))
		default:
		}
		on, err := hasProgram(p.gateway, frontDev, backDev)
		if err == nil && !on {
			err = fmt.Errorf("%s does not forward", filepath.Base(x.path))
		}
		return err
	})
}

// hasProgram reports whether each of these interfaces of a host has an XDP program.
func hasProgram(h *topo.Host, devs ...string) (on bool, err error) {
	err = h.Run(func() error {
		on = true
		for _, dev := range devs {
			l, err := netlink.LinkByName(dev)
			if err != nil {
				return err
			}
			x := l.Attrs().Xdp
			on = on && x != nil && x.Attached
		}
		return nil
	})
	return on, err
}

func (x *program) stop() error {
	if x.process == nil {
		return nil
	}
	p := x.process
	x.process = nil
	return p.Stop(programTimeout)
}

func (x *program) counters(context.Context) (map[string]uint64, error) {
	if x.process == nil {
		return nil, nil
	}
	select {
	case <-x.process.Done():
		return nil, fmt.Errorf("%s ended by itself: %w", filepath.Base(x.path), x.process.Err())
	default:
		return nil, nil
	}
}

func (x *program) diagnosis() string {
	if x.process != nil {
		_ = x.stop() // so that the process no longer writes
	}
	return x.log.String()
}

// buildAsavie builds the forwarder over asavie/xdp into a directory.
func buildAsavie(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "asavie-l2fwd")
	c := exec.CommandContext(ctx, "go", "build", "-o", path, "sluice.dev/sluice/bench/asavie/l2fwd")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := c.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("the forwarder over asavie/xdp is built when it is measured: %w; install Go, or leave "+
			"this system out with --systems", err)
	}
	if err != nil {
		return "", fmt.Errorf("build the forwarder over asavie/xdp (call this in Sluice's tree): %w\n%s", err, out)
	}
	return path, nil
}
