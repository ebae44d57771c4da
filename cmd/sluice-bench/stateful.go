package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/bench/stateful"
)

func statefulCommand() *cobra.Command {
	c := stateful.Defaults()
	command := &cobra.Command{
		Use:   "stateful [PROFILE]",
		Short: "Open connections by a profile, through a gateway, and count their results",
		Long: "stateful plays exchanges of real protocols over many connections, with a TCP of its own at both ends " +
			"over\n" +
			"AF_XDP: client and server pools, rates, ramps and shares are in PROFILE, a file or the name of one in\n" +
			"bench/profiles. Servers tag their data, so a connection that reaches two servers is detected: then\n" +
			"the exit status is 1.\n\n" +
			"Without --client it builds a network of its own: --through none is a wire, --through sluice a gateway " +
			"with\n" +
			"the server pool as endpoints, which --churn removes and adds while traffic flows. With --client and " +
			"--server\n" +
			"it plays over interfaces that are there and takes all their packets while it runs. With --memory both\n" +
			"ends run in this process, to measure the generator itself.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("stateful takes one profile, not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 1 && !c.Memory:
				c.Profile = args[0]
			case len(args) == 0 && !c.Memory:
				return errors.New("name a profile (http, dns, streams, quic, mix or a file), or give --memory")
			case len(args) == 1:
				return errors.New("--memory has loads of its own: leave out the profile")
			case (c.Client == "") != (c.Server == ""):
				return errors.New("--client and --server go together")
			}
			return stateful.Run(cmd.Context(), c)
		},
	}
	f := command.Flags()
	f.StringSliceVar(&c.Through, "through", c.Through, "gateways between the ends, in turns: none, sluice")
	f.StringVar(&c.Sluice, "sluice", besideMe("sluice"), "the sluice binary")
	f.IntVar(&c.Churn, "churn", 0, "edits of the endpoints each second, through sluice")
	f.StringVar(&c.Client, "client", "", "the clients' interface: INTERFACE[@NAMESPACE]")
	f.StringVar(&c.Server, "server", "", "the servers' interface: INTERFACE[@NAMESPACE]")
	f.StringVar(&c.ClientGateway, "client-gateway", "",
		"the router that clients send to; they then connect to the profile's vip")
	f.StringVar(&c.ServerGateway, "server-gateway", "", "the router that servers send to")
	f.BoolVar(&c.IOwnThisNetwork, "i-own-this-network", false,
		"permit interfaces of the machine's own namespace, and those with a default route")
	f.BoolVar(&c.IPv6, "ipv6", false, "put the profile's IPv4 addresses into IPv6")
	f.DurationVar(&c.Duration, "duration", 0, "instead of the profile's")
	f.Float64Var(&c.CPS, "cps", c.CPS,
		"connections a second instead of the profile's, without its ramp; 0 is as many as go")
	f.IntVar(&c.Concurrency, "concurrency", 0, "connections at a time instead of the profile's")
	f.BoolVar(&c.Memory, "memory", false, "both ends in this process, back to back in memory")
	f.IntVar(&c.Concurrent, "concurrent", c.Concurrent, "with --memory: connections that are held open")
	f.DurationVar(&c.Window, "windows", c.Window, "with --memory: length of each measurement")
	f.IntVar(&c.Repeat, "repeat", 0, "runs, in turns where there are several systems (default 1; with --memory 5)")
	f.StringVar(&c.JSON, "json", "", "save the figures in this file")
	command.AddCommand(templateCommand())
	return command
}

// templateCommand turns a capture into templates.
func templateCommand() *cobra.Command {
	c := stateful.DefaultCapture()
	command := &cobra.Command{
		Use:   "template CAPTURE",
		Short: "Write the TCP and UDP conversations of a capture (pcap, pcapng) as a profile",
		Long: "template takes the conversations of a capture that have a beginning, in order of their first packet, " +
			"and\n" +
			"prints a profile: the bytes of each end and their times, one template each. The end that sent first is " +
			"the\n" +
			"client. Payload is not copied unless --bytes is given: captures may hold private data.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("template takes one capture file (pcap, pcapng), not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return stateful.FromCapture(cmd.OutOrStdout(), args[0], c)
		},
	}
	f := command.Flags()
	f.IntVar(&c.Conversations, "conversations", c.Conversations, fmt.Sprintf("how many are taken, at most %d",
		stateful.MaxTemplates))
	f.BoolVar(&c.Bytes, "bytes", false, "write the bytes that clients sent, as hex")
	return command
}
