package gaps

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/metrics"
	"runtime/pprof"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"sluice.dev/sluice/bench/updates"
	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/k8s"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/fastpath/thread"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/fragment"
)

// Child is the input of a measured process, as JSON in its only argument.
type Child struct {
	Variant Variant `json:"variant"`
	Server  string  `json:"server"` // URL
	CPU     int     `json:"cpu"`    // the worker's
	CPUs    []int   `json:"cpus"`   // all, the worker's among them
	Profile string  `json:"profile,omitempty"`
}

// process is the measured one: the control plane and a worker.
type process struct {
	Child
	probe  *probe
	worker *fastpath.Worker
	loop   *loop.Loop
	watch  *k8s.Watcher
	handle services.Handle
}

// RunChild is the life of a measured process. Each line of in asks something, and is
// answered by a line: "sync" when everything that the API server said before is published,
// "take" with the Window since the last.
func RunChild(ctx context.Context, text string, in io.Reader, out io.Writer) error {
	p := &process{}
	if err := json.Unmarshal([]byte(text), &p.Child); err != nil {
		return fmt.Errorf("configuration of the measurement: %w", err)
	}
	if err := p.Variant.settle(p.CPU, p.CPUs); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	block := new(stats.Block)
	if err := p.makeWorker(block); err != nil {
		cancel()
		return err
	}
	defer p.worker.Close()
	if err := p.makeControl(block); err != nil {
		cancel()
		return err
	}
	ended := make(chan error, 4)
	group, err := thread.NewGroup(thread.Priority{})
	if err != nil {
		cancel()
		return err
	}
	go func() { ended <- group.TidyEvery(ctx, time.Second) }()
	threads, turn := group, thread.Turn
	if p.Variant.Locked {
		threads = nil
	}
	if p.Variant.Unyielding {
		turn = 0
	}
	go func() {
		ended <- p.worker.Run(ctx, fastpath.RunConfig{CPU: p.CPU, Threads: threads, Turn: turn,
			Waiting: fastpath.Waiting{Spin: forever, Sleep: time.Second}})
	}()
	go func() { p.watch.Run(ctx); ended <- nil }()
	go func() { _ = p.loop.Run(ctx); ended <- nil }()
	err = p.profiled(func() error { return p.answer(ctx, in, out) })
	cancel()
	return errors.Join(err, <-ended, <-ended, <-ended, <-ended)
}

// forever is longer than any measurement: the worker never sleeps by itself.
const forever = 1000 * time.Hour

func (p *process) makeWorker(block *stats.Block) error {
	flows, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 1 << 16, Timeouts: flowtable.DefaultTimeouts()})
	if err != nil {
		return err
	}
	fragments, err := fragment.New(make([]atomic.Uint64, fragment.Words(1024)), [2]uint64{1, 2})
	if err != nil {
		return err
	}
	const frames, frameSize = 64, 2048
	p.probe = newProbe(p.CPU)
	p.worker, err = fastpath.New(fastpath.Config{
		Memory: make([]byte, frames*frameSize), Pool: fastpath.NewPool(frames, frameSize),
		Links: []fastpath.Link{p.probe}, Egress: []int{0}, Host: -1,
		Flows: flows, Workers: workers, Services: &p.handle, Hops: nexthop.NewTable(), Fragments: fragments,
		Stats:       block,
		HeldPackets: 64, HeldPerHop: 16, HeldFragments: 64, FragmentWait: time.Second, TTL: 64,
	})
	if err != nil {
		return err
	}
	// Before the first table: as the daemon's workers, it must have one to start with.
	p.handle.Store(services.NewBuilder(nil).Build())
	return nil
}

func (p *process) makeControl(block *stats.Block) (err error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	tracker := tracker.New()
	if p.watch, err = k8s.New(k8s.Config{
		Log: log, Client: &rest.Config{Host: p.Server}, Tracker: tracker, NodeName: updates.GatewayNode,
		StaleEndpointTimeout: 30 * time.Second,
	}); err != nil {
		return err
	}
	p.loop = loop.New(loop.Config{
		Log: log, Tracker: tracker, Publisher: loop.NewPublisher(&p.handle, []*stats.Block{block}),
		Compiler: compiler.New(compiler.Config{
			NodeName: updates.GatewayNode, SelectKey: [2]uint64{1, 2}, SNATPorts: services.PortRange{First: 16384,
				Count: 13616}, ClusterIPs: true,
		}),
		Steering: nowhere{}, Feeds: p.watch.Feeds(), Window: 2 * time.Millisecond,
	})
	return nil
}

// nowhere is a kernel program that takes everything: endpoints that change ask nothing of it.
type nowhere struct{}

func (nowhere) Held() (none steer.Set)   { return none }
func (nowhere) Replace(*steer.Set) error { return nil }
func (nowhere) Open(*steer.Set) error    { return nil }
func (nowhere) Close(*steer.Set) error   { return nil }

// answer does what the lines ask until they end.
func (p *process) answer(ctx context.Context, in io.Reader, out io.Writer) error {
	before := read()
	published := p.generation()
	to := json.NewEncoder(out)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		switch lines.Text() {
		case "sync":
			if err := p.loop.Wait(ctx); err != nil {
				return err
			}
			if err := to.Encode("published"); err != nil {
				return err
			}
		case "take":
			w, now := p.probe.take(), read()
			w.Collections, w.Allocated, w.Live = now.collections-before.collections, now.allocated-before.allocated,
				now.live
			w.Published = p.generation() - published
			before, published = now, p.generation()
			if err := to.Encode(w); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *process) generation() uint64 { return p.handle.Load().Generation }

// garbage is what the runtime says without stopping anything (runtime/metrics).
type garbage struct{ collections, allocated, live uint64 }

func read() garbage {
	s := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/heap/allocs:bytes"},
		{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return garbage{s[0].Value.Uint64(), s[1].Value.Uint64(), s[2].Value.Uint64()}
}

// profiled writes what was allocated, by size, after f, if that is requested.
func (p *process) profiled(f func() error) error {
	err := f()
	if p.Profile == "" || err != nil {
		return err
	}
	file, err := os.Create(p.Profile)
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup("allocs").WriteTo(file, 0), file.Close())
}
