package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/bench/stateful"
)

func statefulCommand() *cobra.Command {
	c := stateful.Defaults()
	command := &cobra.Command{
		Use:   "stateful [PROFILE]",
		Short: "Open connections by a profile, through a gateway, and count their results",
		Long: "stateful plays exchanges of real protocols over many connections, with its own TCP at both ends\n" +
			"over AF_XDP: client and server pools, rates, ramps and shares are in PROFILE, a file or the name\n" +
			"of one in bench/profiles. Servers tag their data, so a connection that reaches two servers is\n" +
			"detected: then the exit status is 1.\n\n" +
			"Without --client it builds networks of its own: --through none is a wire, sluice a gateway with the\n" +
			"server pool as endpoints, which --churn removes and adds while traffic flows, nftables and iptables\n" +
			"are kube-proxy, whose control plane the first run builds (make -C test cluster-binaries).\n" +
			"With --client and --server it plays over existing interfaces and takes all their packets while\n" +
			"it runs. With --memory both ends run in this process, to measure the generator itself.",
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
				return errors.New("name a profile (answers, http, dns, streams, quic, mix or a file), or give --memory")
			case len(args) == 1:
				return errors.New("--memory has loads of its own: leave out the profile")
			case (c.Client == "") != (c.Server == ""):
				return errors.New("--client and --server go together")
			}
			return stateful.Run(cmd.Context(), c)
		},
	}
	f := command.Flags()
	f.StringSliceVar(&c.Through, "through", c.Through,
		"gateways between the ends, in turn: "+strings.Join(stateful.Systems, ", "))
	f.StringVar(&c.Sluice, "sluice", besideMe("sluice"), "the sluice binary")
	f.StringVar(&c.Options, "options", "", "more of Sluice's configuration: YAML, whole top-level fields")
	f.IntVar(&c.Churn, "churn", 0, "edits of the endpoints each second, through sluice")
	f.IntVar(&c.Services, "services", 0, "Services in all; without, one for each template")
	f.IntSliceVar(&c.Rates, "rates", nil, "connections a second, one rate after another, instead of the profile's")
	f.StringVar(&c.Client, "client", "", "the clients' interface: INTERFACE[@NAMESPACE]")
	f.StringVar(&c.Server, "server", "", "the servers' interface: INTERFACE[@NAMESPACE]")
	f.StringVar(&c.ClientGateway, "client-gateway", "",
		"the router to which clients send; they then connect to the profile's vip")
	f.StringVar(&c.ServerGateway, "server-gateway", "", "the router to which servers send")
	f.BoolVar(&c.IOwnThisNetwork, "i-own-this-network", false,
		"permit interfaces in the machine's own namespace or with a default route")
	f.BoolVar(&c.IPv6, "ipv6", false, "convert the profile's addresses to IPv6")
	f.DurationVar(&c.Duration, "duration", 0, "instead of the profile's")
	f.Float64Var(&c.CPS, "cps", c.CPS,
		"connections a second instead of the profile's, without its ramp; 0 is as many as possible")
	f.IntVar(&c.Concurrency, "concurrency", 0, "connections at a time instead of the profile's")
	f.BoolVar(&c.Memory, "memory", false, "both ends in this process, back to back in memory")
	f.IntVar(&c.Concurrent, "concurrent", c.Concurrent, "with --memory: connections held open")
	f.DurationVar(&c.Window, "windows", c.Window, "with --memory: length of each measurement")
	f.IntVar(&c.Repeat, "repeat", 0, "runs, in turn if there are several systems (default 1; with --memory 5)")
	f.StringVar(&c.JSON, "json", "", "save the figures in this file")
	return command
}
