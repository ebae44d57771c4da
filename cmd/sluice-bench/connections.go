package main

import (
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/bench/connections"
)

func connectionsCommand() *cobra.Command {
	c := connections.Defaults()
	command := &cobra.Command{
		Use:   "connections",
		Short: "Measure what a TCP client feels: connect, first byte, 10 KB, beside kube-proxy",
		Long: "connections opens TCP connections at several rates through Sluice and kube-proxy in its modes, in\n" +
			"turns, and over a wire. Over each the client asks, gets 10 KB and closes. It prints how many were\n" +
			"completed and failed, and the time to connect, to the first and to the last byte. It needs Linux 6.12,\n" +
			"root, and for kube-proxy the tools nft and iptables; the first run builds the control plane, which\n" +
			"takes minutes (make -C test cluster-binaries).",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return connections.Run(cmd.Context(), c) },
	}
	f := command.Flags()
	f.StringVar(&c.Sluice, "sluice", besideMe("sluice"), "the sluice binary")
	f.StringVar(&c.Options, "options", "", "more of Sluice's configuration: YAML, whole top-level fields")
	f.StringSliceVar(&c.Systems, "systems", c.Systems, "of "+strings.Join(connections.Systems, ", "))
	f.IntSliceVar(&c.Rates, "rates", c.Rates, "connections a second")
	f.IntVar(&c.Services, "services", c.Services, "Services in all")
	f.IntVar(&c.Repeat, "repeat", c.Repeat, "measurements of each system at each rate, in turns")
	f.DurationVar(&c.Length, "length", c.Length, "of each measurement")
	f.StringVar(&c.JSON, "json", "", "save the figures in this file")
	return command
}
