package main

import (
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/bench/updates"
)

func updatesCommand() *cobra.Command {
	c := updates.Defaults()
	command := &cobra.Command{
		Use:   "updates",
		Short: "Measure how long changes of endpoints take to reach packets",
		Long: "updates runs the gateway on an API server with thousands of Services, changes endpoints at a steady\n" +
			"rate, and prints the time from a change to the first packet that follows it, the losses of another\n" +
			"Service's flows, and the daemon's CPU time and memory. It needs Linux 6.12 and root; with --server\n" +
			"real, also the control plane that the first run builds (make -C test cluster-binaries).",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := updates.Run(cmd.Context(), c)
			return err
		},
	}
	f := command.Flags()
	f.StringVar(&c.Sluice, "sluice", besideMe("sluice"), "the sluice binary")
	f.StringVar(&c.Server, "server", c.Server, "where changes come from: "+strings.Join(updates.Servers, ", "))
	f.IntVar(&c.Services, "services", c.Services, "Services in all")
	f.IntVar(&c.Endpoints, "endpoints", c.Endpoints, "endpoints of each Service that is not probed")
	f.IntVar(&c.Probed, "probed", c.Probed, "Services that are probed, of one endpoint each")
	f.IntVar(&c.Rate, "rate", c.Rate, "changes a second")
	f.IntVar(&c.ProbedRate, "probed-rate", c.ProbedRate, "changes a second of probed Services, a part of the rate")
	f.DurationVar(&c.Probe, "probe", c.Probe, "time between two datagrams to a probed Service")
	f.IntVar(&c.Seconds, "seconds", c.Seconds, "how long to make changes")
	f.StringArrayVar(&c.Env, "env", nil, "NAME=VALUE for the daemon, such as GODEBUG=gctrace=1")
	f.StringVar(&c.JSON, "json", "", "a file for the figures, which sluice-bench report reads")
	return command
}
