package main

import (
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/bench/l2fwd"
	"sluice.dev/sluice/test/bed/stateless"
)

func l2fwdCommand() *cobra.Command {
	var c l2fwd.Config
	var nextIn, nextOut string
	var own bool
	command := &cobra.Command{
		Use:   "l2fwd",
		Short: "Only forward between two interfaces",
		Long: "l2fwd takes every IPv4 and IPv6 packet of two interfaces of this network namespace and sends it\n" +
			"out of the other one, over the same rings and with the same default settings as the gateway. It\n" +
			"is the baseline of the gateway's forwarding rate. Stop it with ^C.",
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
	f.StringVar(&c.Out.Interface, "out", "", "the other interface")
	f.StringVar(&nextIn, "next-in", "",
		"MAC address of the next hop behind --in")
	f.StringVar(&nextOut, "next-out", "", "MAC address of the next hop behind --out")
	f.IntVar(&c.Queues, "queues", 0, "of each interface; 0: all")
	f.IntSliceVar(&c.CPUs, "cpus", nil,
		"CPUs of the workers, one on each, which share the queues; none: a worker per queue, not pinned")
	f.StringVar((*string)(&c.Waiting), "waiting", "",
		"how to wait for packets, as the gateway's setting: dedicated or shared (default shared)")
	f.BoolVar(&own, "i-own-this-network", false,
		"permit taking all packets of interfaces in the machine's own namespace or with a default route")
	for _, name := range []string{"in", "out", "next-in", "next-out"} {
		_ = command.MarkFlagRequired(name)
	}
	return command
}

// macFlag reads an Ethernet address.
func macFlag(name, text string) (m l2fwd.MAC, err error) {
	a, err := net.ParseMAC(text)
	if err != nil || len(a) != len(m) {
		return m, fmt.Errorf("--%s %q: write an Ethernet address such as 02:00:00:00:00:01", name, text)
	}
	return l2fwd.MAC(a), nil
}
