package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/bench/compare"
	"sluice.dev/sluice/test/bed/stateless"
)

func compareCommand() *cobra.Command {
	c := compare.Defaults()
	var at, senders []string
	own := compare.Senders{CPUs: []int{0}, Queues: 2}
	command := &cobra.Command{
		Use:   "compare",
		Short: "Measure Sluice beside l2fwd, the kernel, nftables, XDP NAT and kube-proxy",
		Long: "compare builds a client, a gateway and a server, and makes each system in turn forward the same UDP " +
			"packets:\n\n" +
			compare.Describe() +
			"\nIt prints rates, processor time per packet and latency, and Sluice's ratios to the others. For a\n" +
			"system in the kernel, the ratio is to the best way of steering packets (RPS), which it names.\n" +
			"It needs Linux 6.12, root, nft; for kube-proxy iptables too, and the control plane that the first run\n" +
			"builds (make -C test cluster-binaries); for asavie/xdp, Go and this tree. --quick needs less, and a\n" +
			"minute.\n\n" +
			"With --before an older sluice is measured in the same rounds, next to this one: for each figure the\n" +
			"ratio now/before, a 95 % interval of its median, and whether it is unchanged within 3 %.",
		Example: "  sluice-bench compare --quick\n" +
			"  sluice-bench compare --senders every-cpu --systems sluice,xdp-nat,nftables,nftables-rps\n" +
			"  sluice-bench compare --before ../older/bin/sluice --rates",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, rate := range at {
				if share, ok := strings.CutSuffix(rate, "%"); ok {
					percent, err := strconv.ParseFloat(share, 64)
					if err != nil {
						return fmt.Errorf("--at %s: a share of nftables' no-drop rate is a number and %%, as 50%%",
							rate)
					}
					c.AtShares = append(c.AtShares, percent/100)
					continue
				}
				r, err := stateless.ParseRate(rate)
				if err != nil {
					return err
				}
				c.At = append(c.At, r)
			}
			var err error
			if c.Rows, err = compare.ParseSenders(senders); err != nil {
				return err
			}
			if cmd.Flags().Changed("queues") || cmd.Flags().Changed("sender-cpus") {
				c.Rows = []compare.Senders{own}
			}
			if c.Bulk && !cmd.Flags().Changed("services") {
				c.Services = []int{1}
			}
			if c.Before != "" && !cmd.Flags().Changed("repeat") {
				c.Repeat = compare.BeforeRepeat
			}
			_, err = compare.Run(cmd.Context(), c)
			return err
		},
	}
	f := command.Flags()
	f.StringVar(&c.Sluice, "sluice", besideMe("sluice"), "the sluice binary")
	f.StringVar(&c.Bench, "l2fwd", besideMe("sluice-bench"), "the sluice-bench binary, which contains l2fwd")
	f.StringSliceVar(&c.Systems, "systems", c.Systems,
		"systems to measure, of the list above (default all except systems with options or older builds,\n"+
			"asavie-drained and the kernel's forwarding with RPS)")
	f.IntSliceVar(&c.Services, "services", c.Services,
		"Services for Sluice and kube-proxy; a comparison for each number")
	f.IntVar(&c.Flows, "flows", c.Flows, "UDP flows")
	f.IntVar(&c.Frame, "frame", c.Frame, "bytes of a frame, with its check sequence")
	f.StringSliceVar(&senders, "senders", nil,
		"senders of packets, a comparison for each: one-queue and two-queues of CPU 0, every-cpu with a queue\n"+
			"each (default all three; two-queues with --quick, --at and --before)")
	f.IntVar(&own.Queues, "queues", own.Queues, "instead of --senders: queues of every interface")
	f.IntSliceVar(&own.CPUs, "sender-cpus", own.CPUs,
		"instead of --senders: CPUs of the generator's threads, one thread per queue, in turn; packets arrive there")
	f.IntVar(&c.Repeat, "repeat", c.Repeat, "rounds, each of all systems")
	f.DurationVar(&c.Duration, "duration", c.Duration, "of each measurement")
	f.DurationVar(&c.Trial, "trial", c.Trial, "of each step of the search for the no-drop rate")
	f.DurationVar(&c.Settle, "settle", c.Settle,
		"of slow traffic to each system before measuring, so that sluice's workers can move")
	f.Float64Var(&c.LossBound, "loss", c.LossBound, "share that the no-drop rate may lose")
	f.BoolVar(&c.Quick, "quick", c.Quick,
		"a check in a minute: no kube-proxy unless named, no no-drop rate, no latency")
	f.BoolVar(&c.BothWays, "both-ways", false,
		"the server answers each packet: rates are of answers that reach the client, latencies of round trips")
	f.BoolVar(&c.Bulk, "bulk", false,
		"TCP connections that carry as much as they can, one and eight, each way: Gbit/s, processor time, segments "+
			"sent\nagain; also beside nftables with the kernel's offloads (default 1 Service; of --senders only the "+
			"queues count:\none-queue, every-cpu)")
	f.BoolVar(&c.Rates, "rates", c.Rates, "measure only the highest rates")
	f.StringSliceVar(&at, "at", nil,
		"measure only processor time and latency, at these rates, packets per second, or shares of the "+
			"no-drop\nrate of nftables at its best: 50k,150k,90%")
	f.DurationVar(&c.Together, "together", c.Together,
		"collect packets for this time and send them at once, 64 at most: fewer wake-ups of the generator "+
			"(default 50us)")
	f.BoolVar(&c.First, "first", false, "give this session priority over all others of the machine (autogroup)")
	f.StringVar(&c.Options, "sluice-options", "",
		"extra configuration of Sluice, as YAML, for a system sluice-options: 'waiting: shared'")
	f.BoolVar(&c.Trials, "trials", c.Trials,
		"print each trial of the search for the no-drop rate, with where packets were lost")
	f.StringVar(&c.Before, "before", "",
		"an older sluice, or its directory, to measure beside this one as sluice-before (without --systems:\n"+
			"only these two)")
	f.BoolVar(&c.FailSlower, "fail-slower", false,
		"with --before: exit status 1 if a figure is slower by more than 3 %")
	f.StringVar(&c.JSON, "json", "", "save the results in this file")
	return command
}
