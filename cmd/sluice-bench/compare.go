package main

import (
	"github.com/spf13/cobra"

	"sluice.dev/sluice/bench/compare"
	"sluice.dev/sluice/bench/stateless"
)

func compareCommand() *cobra.Command {
	c := compare.Defaults()
	var at []string
	command := &cobra.Command{
		Use:   "compare",
		Short: "Measure Sluice beside l2fwd, the kernel, nftables and kube-proxy",
		Long: "compare builds a client, a gateway and a server, and in turn has each system forward the same UDP " +
			"packets:\n\n" +
			compare.Describe() +
			"\nIt prints rates, processor time per packet and latency, and Sluice's ratios to the others.\n" +
			"It needs Linux 6.12, root, nft; for kube-proxy iptables too, and the control plane that the first run\n" +
			"builds (make cluster-binaries); for asavie/xdp, Go and this tree. --quick needs less, and a minute.\n\n" +
			"With --before an older sluice is measured beside this one, in the same rounds, side by side: of each " +
			"figure\n" +
			"the ratio now/before, a 95 % interval of its median, and whether it is unchanged within 3 %.",
		Example: "  sluice-bench compare --quick\n" +
			"  sluice-bench compare --before ../older/bin/sluice --rates",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, rate := range at {
				r, err := stateless.ParseRate(rate)
				if err != nil {
					return err
				}
				c.At = append(c.At, r)
			}
			if c.Before != "" && !cmd.Flags().Changed("repeat") {
				c.Repeat = compare.BeforeRepeat
			}
			_, err := compare.Run(cmd.Context(), c)
			return err
		},
	}
	f := command.Flags()
	f.StringVar(&c.Sluice, "sluice", besideMe("sluice"), "the sluice binary")
	f.StringVar(&c.Bench, "l2fwd", besideMe("sluice-bench"), "the sluice-bench binary, which is l2fwd")
	f.StringSliceVar(&c.Systems, "systems", c.Systems,
		"systems to measure, of the list above (default all but asavie-drained, kernel-rps and sluice-before)")
	f.IntSliceVar(&c.Services, "services", c.Services,
		"Services of Sluice and kube-proxy; several numbers: a comparison for each")
	f.IntVar(&c.Flows, "flows", c.Flows, "UDP flows")
	f.IntVar(&c.Frame, "frame", c.Frame, "bytes of a frame, with its check sequence")
	f.IntVar(&c.Queues, "queues", c.Queues, "queues of every interface")
	f.IntSliceVar(&c.SenderCPUs, "sender-cpus", c.SenderCPUs,
		"CPUs of the generator's threads, one thread per queue, in turn; packets arrive there")
	f.IntVar(&c.Repeat, "repeat", c.Repeat, "rounds, each of all systems")
	f.DurationVar(&c.Duration, "duration", c.Duration, "of each measurement")
	f.DurationVar(&c.Trial, "trial", c.Trial, "of each step of the search for the no-drop rate")
	f.Float64Var(&c.LossBound, "loss", c.LossBound, "share that the no-drop rate may lose")
	f.BoolVar(&c.Quick, "quick", c.Quick,
		"a check in a minute: no kube-proxy unless named, no no-drop rate, no latency")
	f.BoolVar(&c.Rates, "rates", c.Rates, "the highest rates and nothing else")
	f.StringSliceVar(&at, "at", nil,
		"instead of all else, processor time and latency at these rates, packets per second: 50k,150k")
	f.DurationVar(&c.Together, "together", c.Together,
		"send the packets of this time at once, 64 at most: the longer, the fewer wake-ups of the generator "+
			"(default 50us)")
	f.StringVar(&c.Options, "sluice-options", "",
		"more of Sluice's configuration, as YAML: 'sockets: {coalesce: 100us}'")
	f.BoolVar(&c.Trials, "trials", c.Trials,
		"print each trial of the search for the no-drop rate, with where packets were lost")
	f.StringVar(&c.Before, "before", "",
		"an older sluice, or its directory, to measure beside this one as sluice-before (without --systems: these "+
			"two alone)")
	f.BoolVar(&c.FailSlower, "fail-slower", false,
		"with --before: exit status 1 if a figure is slower by more than 3 %")
	f.StringVar(&c.JSON, "json", "", "save the results in this file")
	return command
}
