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
		Short: "Show how a Service gets an address by BGP that answers, lose a gateway, and check the results",
		Long: "demo-vip starts etcd and a real API server, sluice-controller, two gateways with\n" +
			"sluice-announcer, and BIRD as their router, in namespaces; applies a pool, a peer and a Service;\n" +
			"prints step by step until its addresses answer; then a gateway loses its power. The exit status is 0\n" +
			"only if every expectation was met. The first time it builds Kubernetes and downloads BIRD, which\n" +
			"takes minutes. It needs Linux 6.12, root, Go, the source tree, and apt-get.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return vip.Run(cmd.Context(), c) },
	}
	f := command.Flags()
	f.StringVar(&c.Sluice, "sluice", besideMe("sluice"), "the sluice binary")
	f.StringVar(&c.Controller, "controller", besideMe("sluice-controller"), "the sluice-controller binary")
	f.StringVar(&c.Announcer, "announcer", besideMe("sluice-announcer"), "the sluice-announcer binary")
	f.BoolVar(&c.Keep, "keep", false, "lose no gateway, and leave everything standing until ^C, with things to try")
	f.IntVar(&c.Patience, "patience", 1, "multiplies every bound of time, for a slow machine")
	return command
}
