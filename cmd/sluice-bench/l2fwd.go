package main

import (
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/bench/l2fwd"
	"sluice.dev/sluice/bench/stateless"
)

func l2fwdCommand() *cobra.Command {
	var c l2fwd.Config
	var nextIn, nextOut string
	var own bool
	command := &cobra.Command{
		Use:   "l2fwd",
		Short: "Forward between two interfaces and do nothing else",
		Long: "l2fwd takes every IPv4 and IPv6 packet of two interfaces of this network namespace and sends it out " +
			"of\n" +
			"the other one, over the rings and with the settings that the gateway has by default. It is what the\n" +
			"gateway's forwarding rate is held against. Stop it with ^C.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if c.In.Next, err = macFlag("next-in", nextIn); err != nil {
				return err
			}
			if c.Out.Next, err = macFlag("next-out", nextOut); err != nil {
				return err
			}
			for _, name := range []string{c.In.Interface, c.Out.Interface} {
				if own {
					break
				}
				p := stateless.Port{Interface: name}
				if err := p.Guard(); err != nil {
					return err
				}
			}
			var stats *l2fwd.Stats
			c.Ready = func(s *l2fwd.Stats) {
				stats = s
				fmt.Fprintf(cmd.ErrOrStderr(), "forwarding between %s and %s on %d queues\n", c.In.Interface,
					c.Out.Interface, len(s.Workers))
			}
			err = l2fwd.Run(cmd.Context(), c)
			if stats != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "%+v\n", stats.Totals())
			}
			return err
		},
	}
	f := command.Flags()
	f.StringVar(&c.In.Interface, "in", "", "one interface")
	f.StringVar(&c.Out.Interface, "out", "", "the other interface, or the same")
	f.StringVar(&nextIn, "next-in", "",
		"MAC address of the next hop behind --in; without, source and destination are exchanged")
	f.StringVar(&nextOut, "next-out", "", "MAC address of the next hop behind --out")
	f.IntVar(&c.Queues, "queues", 0, "of each interface; 0: all")
	f.IntSliceVar(&c.CPUs, "cpus", nil,
		"CPUs of the workers, one on each, which share the queues; none: a worker per queue, not pinned")
	f.IntVar(&c.Batch, "batch", 0, "packets of one pass; 0: as the gateway")
	f.IntVar(&c.TxBudget, "tx-budget", 0, "packets of one system call in copy mode; 0: the transmit ring")
	f.DurationVar(&c.Spin, "spin", 0,
		"how long to look for packets before sleeping; 0: as the gateway, negative: never sleep")
	f.StringVar((*string)(&c.Waiting), "waiting", "",
		"how to wait for packets, as the gateway's setting: dedicated or shared (default shared)")
	f.BoolVar(&own, "i-own-this-network", false,
		"permit taking all packets of interfaces of the machine's own namespace, and of those with a default route")
	_ = command.MarkFlagRequired("in")
	_ = command.MarkFlagRequired("out")
	command.AddCommand(knobsCommand(), proportionalCommand())
	return command
}

func knobsCommand() *cobra.Command {
	e := l2fwd.DefaultExperiment()
	command := &cobra.Command{
		Use:   "knobs",
		Short: "Compare settings of sockets, loop and devices",
		Long: "knobs builds three network namespaces, forwards between them, and changes one setting at a time:\n" +
			"docs/tuning.md explains them. Step is the time of one pass over waiting packets, per packet, which\n" +
			"other work on the machine hardly disturbs; the rest is under a load that sender, forwarder and " +
			"receiver\n" +
			"share the machine for. Medians of interleaved samples. It needs Linux 6.12 and root.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e.Out, e.Progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return l2fwd.MeasureKnobs(cmd.Context(), e)
		},
	}
	experimentFlags(command, &e)
	command.Flags().StringSliceVar(&e.Variants, "knobs", nil, "which, of: "+strings.Join(l2fwd.Knobs(), ", ")+
		"; none: all")
	command.Flags().IntVar(&e.Steps, "steps", e.Steps, "passes of one sample")
	return command
}

func proportionalCommand() *cobra.Command {
	e := l2fwd.DefaultExperiment()
	spins := []time.Duration{time.Nanosecond, 5 * time.Microsecond, 20 * time.Microsecond, 100 * time.Microsecond,
		l2fwd.AsWorked}
	command := &cobra.Command{
		Use:   "proportional",
		Short: "Measure a worker's CPU time at no load, some and full load",
		Long: "proportional finds the highest rate that one worker forwards, then offers parts of it, and prints\n" +
			"the CPU time of the worker's thread and the latency of packets, for each time that a worker may\n" +
			"spin before it sleeps. Medians of interleaved samples. It needs Linux 6.12 and root.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e.Out, e.Progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return l2fwd.MeasureProportional(cmd.Context(), e, spins)
		},
	}
	experimentFlags(command, &e)
	command.Flags().DurationSliceVar(&spins, "spins", spins,
		"how long to look for packets before sleeping; 1ns: not at all, -1ns: all in all as long as packets took, "+
			"20us at a time at most")
	return command
}

func experimentFlags(command *cobra.Command, e *l2fwd.Experiment) {
	f := command.Flags()
	f.IntVar(&e.Repeat, "repeat", e.Repeat, "interleaved samples of each figure")
	f.DurationVar(&e.Window, "duration", e.Window,
		"of one sample under load; knobs: 0 times steps only, which a machine that others use allows, too")
	f.DurationVar(&e.Warmup, "warmup", e.Warmup, "before each")
	f.IntVar(&e.SourceCPU, "source-cpu", e.SourceCPU, "CPU of the sender; -1: any")
	f.IntVar(&e.WorkerCPU, "worker-cpu", e.WorkerCPU, "CPU of the forwarder")
	f.StringVar(&e.JSON, "json", "", "save the results in this file")
}

// macFlag reads an Ethernet address; nothing is the zero address.
func macFlag(name, text string) (m l2fwd.MAC, err error) {
	if text == "" {
		return m, nil
	}
	a, err := net.ParseMAC(text)
	if err != nil || len(a) != len(m) {
		return m, fmt.Errorf("--%s %q: write an Ethernet address such as 02:00:00:00:00:01", name, text)
	}
	return l2fwd.MAC(a), nil
}
