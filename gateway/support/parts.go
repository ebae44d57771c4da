// Package support lists the parts of an archive about a gateway: its configuration, its state, and
// its kernel's, at one time. It reads no files that contain only secrets, and no packets.
package support

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"sluice.dev/sluice/announce/view"
	"sluice.dev/sluice/config"
	"sluice.dev/sluice/gateway/doctor"
	"sluice.dev/sluice/gateway/support/archive"
	"sluice.dev/sluice/serve/status"
)

// Source is where the parts come from.
type Source struct {
	Client *status.Client
	// Announcer is the socket of the announcer, AnnouncerConfig its configuration.
	Announcer, AnnouncerConfig string
	// Facts reads the host, with the configuration of the running daemon.
	Facts func(context.Context) (*doctor.Facts, error)
	// Profile is how long the CPU profile takes; 0: there is none.
	Profile time.Duration
}

// StatusPart is the part that is there if the gateway answers.
const StatusPart = "status.json"

// maxFlows bounds the list of flows; the summary counts all.
const maxFlows = 10_000

// Parts lists all parts of an archive. Parts that need time or CPU are last.
func (s *Source) Parts() []archive.Part {
	c, facts := s.Client, once(s.Facts)
	return []archive.Part{
		{Name: StatusPart, Write: answer(func(ctx context.Context) (any, error) { return c.Status(ctx, false) })},
		{Name: "services.json", Write: answer(func(ctx context.Context) (any, error) { return c.Services(ctx) })},
		{Name: "backends.json", Write: answer(func(ctx context.Context) (any, error) { return c.Backends(ctx) })},
		{Name: "stats.json", Write: answer(func(ctx context.Context) (any, error) { return c.Stats(ctx) })},
		{Name: "times.json", Write: answer(func(ctx context.Context) (any, error) { return c.Times(ctx) })},
		{Name: "drops.json", Write: answer(func(ctx context.Context) (any, error) {
			return c.Drops(ctx,
				time.Time{})
		})},
		{Name: "denials.json", Write: answer(func(ctx context.Context) (any, error) { return c.Denials(ctx) })},
		{Name: "events.json", Write: answer(func(ctx context.Context) (any, error) {
			return c.Events(ctx,
				time.Time{})
		})},
		{Name: "source-ports.json", Write: answer(func(ctx context.Context) (any,
			error) {
			return c.SourcePorts(ctx)
		})},
		{Name: "flows-summary.json", Write: s.writeFlowSummary},
		{Name: "flows.json", Write: s.writeFlows},
		{Name: "announcer.json", Write: answer(func(ctx context.Context) (any, error) {
			return view.Ask(ctx,
				s.Announcer)
		})},
		{Name: "gateway.yaml", Write: s.writeConfig},
		{Name: "announce.yaml", Write: func(_ context.Context, w io.Writer) error {
			return writeFile(w,
				s.AnnouncerConfig)
		}},
		{Name: "doctor.json", Write: answer(func(ctx context.Context) (any, error) {
			f, err := facts(ctx)
			if err != nil {
				return nil, err
			}
			return doctor.Examine(f), nil
		})},
		{Name: "kernel.txt", Write: writeKernel},
		{Name: "sysctls.txt", Write: writeSysctls},
		{Name: "nics.json", Write: writeNICs},
		{Name: "addresses.txt", Write: writeAddresses},
		{Name: "routes.txt", Write: writeRoutes},
		{Name: "neighbours.txt", Write: writeNeighbours},
		{Name: "maps.txt", Addresses: true, Write: writeMaps(facts)},
		{Name: "log.txt", Write: writeLog},
		{Name: "goroutines.txt", Write: s.profile(status.ProfileGoroutines, 0)},
		{Name: "heap.pprof", Binary: true, Write: s.profile(status.ProfileHeap, 0)},
		{Name: "cpu.pprof", Binary: true, Write: s.profile(status.ProfileCPU, s.Profile)},
	}
}

// answer is a part with the answer to a request.
func answer(ask func(context.Context) (any, error)) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		v, err := ask(ctx)
		if err != nil {
			return err
		}
		return writeJSON(w, v)
	}
}

func (s *Source) writeFlowSummary(ctx context.Context, w io.Writer) error {
	counts := map[string]map[string]int{}
	err := s.Client.Flows(ctx, status.FlowFilter{}, func(v *status.FlowView) error {
		if counts[v.Service] == nil {
			counts[v.Service] = map[string]int{}
		}
		counts[v.Service][v.Protocol+" "+v.State]++
		return nil
	})
	return errors.Join(err, writeJSON(w, counts))
}

func (s *Source) writeFlows(ctx context.Context, w io.Writer) error {
	list := []status.FlowView{}
	enough := errors.New("enough")
	err := s.Client.Flows(ctx, status.FlowFilter{}, func(v *status.FlowView) error {
		if list = append(list, *v); len(list) == maxFlows {
			return enough
		}
		return nil
	})
	if errors.Is(err, enough) {
		err = fmt.Errorf("the first %d flows; flows-summary.json counts all", maxFlows)
	}
	return errors.Join(writeJSON(w, list), err)
}

// writeConfig writes the running daemon's configuration.
func (s *Source) writeConfig(ctx context.Context, w io.Writer) error {
	v, err := s.Client.Status(ctx, false)
	if err != nil {
		return err
	}
	return writeFile(w, v.Config.File)
}

// writeFile writes a configuration without its secrets.
func writeFile(w io.Writer, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if text, err = archive.Config(text); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	_, err = w.Write(text)
	return err
}

// once returns read as a function that reads the facts by its first call only.
func once(read func(context.Context) (*doctor.Facts, error)) func(context.Context) (*doctor.Facts, error) {
	var o sync.Once
	var f *doctor.Facts
	var err error
	return func(ctx context.Context) (*doctor.Facts, error) {
		o.Do(func() { f, err = read(ctx) })
		return f, err
	}
}

func writeMaps(facts func(context.Context) (*doctor.Facts, error)) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		c := config.Default()
		if f, err := facts(ctx); err == nil && f.Config != nil {
			c = f.Config
		}
		return maps(ctx, w, filepath.Join(c.BPFFS, "sluice"))
	}
}

// writeLog writes the newest lines of the unit's log. In a pod the log is the container runtime's.
func writeLog(ctx context.Context, w io.Writer) error {
	program, err := exec.LookPath("journalctl")
	if err != nil {
		return errors.New("there is no journalctl here: add the output of kubectl logs for a pod")
	}
	c := exec.CommandContext(ctx, program, "--unit=sluice", "--unit=sluice-announcer", "--lines=5000", "--no-pager",
		"--output=short-iso-precise")
	c.Stdout = w
	return c.Run()
}

func (s *Source) profile(kind string, d time.Duration) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		if kind == status.ProfileCPU && d == 0 {
			return errors.New("--profile is 0s: no CPU profile was taken")
		}
		return s.Client.Profile(ctx, kind, d, w)
	}
}
