package main

import (
	"os"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/bench/demo/vip"
)

func demoVIPCommand() *cobra.Command {
	c := vip.Config{Out: os.Stdout}
	command := &cobra.Command{
		Use:   "demo-vip",
		Short: "Show how a Service gets an address that BGP announces, destroy a gateway, and check the results",
		Long: "demo-vip starts etcd and a real API server, sluice-controller, two gateways with\n" +
			"sluice-announcer, and BIRD as their router, in namespaces; applies a pool, a peer and a Service;\n" +
			"prints each step until the Service answers on its addresses; and then destroys a gateway. The\n" +
			"exit status is 0 only if every expectation was met. The first run builds Kubernetes and\n" +
			"downloads BIRD, which takes minutes. It needs Linux 6.12, root, Go, the source tree, and\n" +
			"apt-get.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return vip.Run(cmd.Context(), c) },
	}
	f := command.Flags()
	f.StringVar(&c.Sluice, "sluice", besideMe("sluice"), "the sluice binary")
	f.StringVar(&c.Controller, "controller", besideMe("sluice-controller"), "the sluice-controller binary")
	f.StringVar(&c.Announcer, "announcer", besideMe("sluice-announcer"), "the sluice-announcer binary")
	f.BoolVar(&c.Keep, "keep", false, "destroy no gateway, and keep the network until ^C, with commands to try")
	f.IntVar(&c.Patience, "patience", 1, "multiplies every time limit, for a slow machine")
	return command
}
