package soak

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/stateless"
	"sluice.dev/sluice/test/bed/topo"
)

// fault is one kind of fault.
type fault struct {
	name   string
	inject func(*world, context.Context) error
	// replaces is set where another process is the gateway's afterwards.
	replaces bool
	// ends is set where the backend that ends does.
	ends bool
}

var faults = []fault{
	{name: "links flap", inject: (*world).flap},
	{name: "process stopped for a second", inject: (*world).stop},
	{name: "SYN flood", inject: (*world).floodAlone},
	{name: "a backend's server ends", inject: (*world).endBackend, ends: true},
	{name: "kill -9", inject: (*world).kill, replaces: true},
	{name: "kill -9 while it starts", inject: (*world).killTwice, replaces: true},
	{name: "SIGABRT, as by a panic", inject: (*world).abort, replaces: true},
	{name: "hand-over", inject: (*world).handOver, replaces: true},
	{name: "kill -9, a second process waits", inject: (*world).takeOverKilled, replaces: true},
	{name: "hand-over, a second process waits", inject: (*world).takeOver, replaces: true},
}

// moment is a random time.
func (w *world) moment(most time.Duration) time.Duration {
	return time.Duration(w.random.Int64N(int64(most)))
}

// flap takes links of both sides down, three times, for 1 to 500 ms.
func (w *world) flap(ctx context.Context) error {
	for range 3 {
		i := w.net.Gateway.Interfaces[w.random.IntN(len(w.net.Gateway.Interfaces))]
		down := time.Millisecond + w.moment(500*time.Millisecond)
		err := w.net.Gateway.Run(func() error {
			link, err := netlink.LinkByName(i.Name)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetDown(link); err != nil {
				return err
			}
			_ = topo.Pause(ctx, down)
			return netlink.LinkSetUp(link)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", i.Name, err)
		}
		_ = topo.Pause(ctx, w.moment(300*time.Millisecond))
	}
	return nil
}

func (w *world) stop(ctx context.Context) error {
	pid := w.gate.PID()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	_ = topo.Pause(ctx, time.Second)
	return syscall.Kill(pid, syscall.SIGCONT)
}

func (w *world) floodAlone(ctx context.Context) error { return w.flood(ctx, 2*time.Second) }

// flood sends SYNs of very many clients to a Service whose backend answers none.
func (w *world) flood(ctx context.Context, d time.Duration) (err error) {
	client, backend := w.net.Clients[2], w.net.Backends[silent]
	mac := w.net.Gateway.Interfaces[0].MAC
	generator, err := stateless.Open(ctx, stateless.Config{
		Traffic: stateless.Traffic{
			Protocol: stateless.TCPSYN, Flows: 1_000_000, DestinationMAC: net.HardwareAddr(mac[:]),
			Sources:          stateless.Addresses{First: netip.MustParseAddr("198.18.0.0"), Count: 1 << 15},
			SourcePorts:      stateless.Ports{First: 1024, Last: 2048},
			Destinations:     stateless.Addresses{First: netip.MustParseAddr(floodVIP)},
			DestinationPorts: stateless.Ports{First: floodPort},
		},
		Tx: stateless.Tx{Port: stateless.Port{Interface: client.Interfaces[0].Name, Namespace: client},
			OwnNetwork: true},
		Rx: stateless.Rx{Port: stateless.Port{Interface: backend.Interfaces[0].Name, Namespace: backend}},
	})
	if err != nil {
		return fmt.Errorf("flood: %w", err)
	}
	defer func() { err = errors.Join(err, generator.Close()) }()
	_, err = generator.Trial(ctx, stateless.Load{Duration: d, Rate: float64(w.FloodRate)})
	return err
}

// endBackend ends a backend's server, with all its connections, when it is no endpoint any more,
// and starts it again.
func (w *world) endBackend(ctx context.Context) error {
	if err := w.setGone(ctx, true); err != nil {
		return err
	}
	if err := w.server.Close(); err != nil {
		return err
	}
	_ = topo.Pause(ctx, w.moment(time.Second))
	var err error
	if w.server, err = w.net.Backends[ends].Serve(backendPort); err != nil {
		return err
	}
	return w.setGone(ctx, false)
}

func (w *world) kill(ctx context.Context) error {
	if err := w.gate.Kill(); err != nil {
		return err
	}
	return w.gate.Start(ctx)
}

func (w *world) killTwice(ctx context.Context) error {
	if err := w.gate.Kill(); err != nil {
		return err
	}
	if err := w.gate.Launch(); err != nil {
		return err
	}
	_ = topo.Pause(ctx, w.moment(400*time.Millisecond))
	return w.kill(ctx)
}

func (w *world) abort(ctx context.Context) error {
	if err := syscall.Kill(w.gate.PID(), syscall.SIGABRT); err != nil {
		return err
	}
	err := topo.Until(ctx, 10*time.Second, time.Millisecond, func(context.Context) error {
		if w.gate.Running() {
			return errors.New("runs still after SIGABRT")
		}
		return nil
	})
	return errors.Join(err, w.gate.Start(ctx))
}

func (w *world) handOver(ctx context.Context) error {
	if err := w.gate.Stop(); err != nil {
		return err
	}
	return w.gate.Start(ctx)
}

func (w *world) takeOverKilled(ctx context.Context) error { return w.second(ctx, w.gate.Kill) }
func (w *world) takeOver(ctx context.Context) error       { return w.second(ctx, w.gate.Stop) }

// second starts a process that waits, and then ends the first one.
func (w *world) second(ctx context.Context, end func() error) error {
	if err := w.gate.LaunchSecond(); err != nil {
		return err
	}
	client := status.NewClient(w.gate.WaitingSocket())
	err := topo.Until(ctx, 20*time.Second, 10*time.Millisecond, func(ctx context.Context) error {
		v, err := client.Status(ctx, false)
		if err == nil && (len(v.Sources) == 0 || !v.Sources[0].Synced) {
			err = errors.New("the second process has not read the manifests")
		}
		return err
	})
	if err = errors.Join(err, end()); err != nil {
		return err
	}
	_, err = w.gate.Applied(ctx)
	return err
}
