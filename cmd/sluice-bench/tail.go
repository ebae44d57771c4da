package main

import (
	"github.com/spf13/cobra"

	"sluice.dev/sluice/bench/compare"
	"sluice.dev/sluice/bench/tail"
	"sluice.dev/sluice/test/bed/stateless"
)

func tailCommand() *cobra.Command {
	c := tail.Defaults()
	var rates, senders []string
	command := &cobra.Command{
		Use:   "tail",
		Short: "Show where the slowest packets waited",
		Long: "tail makes systems forward the packets of compare at some rates, records the activity of the\n" +
			"scheduler, softirqs and interrupts meanwhile, and uses it to divide the path of the slowest\n" +
			"packets: asleep, behind another thread (and its name), interrupted, at work, in the send. It\n" +
			"needs root and a kernel with BTF, and no tracefs.",
		Example: "  sluice-bench tail --rate 200k --senders two-queues\n" +
			"  sluice-bench tail --rate 20k,200k --systems sluice,l2fwd,nftables-rps --worst 3 --json tail.json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("rate") {
				c.At = nil
			}
			for _, rate := range rates {
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
			_, err = tail.Run(cmd.Context(), c)
			return err
		},
	}
	f := command.Flags()
	f.StringVar(&c.Sluice, "sluice", besideMe("sluice"), "the sluice binary")
	f.StringVar(&c.Bench, "l2fwd", besideMe("sluice-bench"), "the sluice-bench binary, which contains l2fwd")
	f.StringSliceVar(&c.Systems, "systems", c.Systems, "systems to measure, as in compare")
	f.StringSliceVar(&rates, "rate", nil, "packets per second, one rate or several (default 20k,100k,200k)")
	f.StringSliceVar(&senders, "senders", nil,
		"senders of packets, each in turn: one-queue and two-queues of CPU 0, every-cpu with a queue each "+
			"(default two-queues)")
	f.DurationVar(&c.Duration, "duration", c.Duration, "of each trial; at each rate one is recorded and one is not")
	f.IntVar(&c.Repeat, "repeat", c.Repeat, "pairs of trials at each rate")
	f.DurationVar(&c.Settle, "settle", c.Settle, "of slow traffic to each system before the trials")
	f.BoolVar(&c.First, "first", false, "give this session priority over all others of the machine (autogroup)")
	f.StringVar(&c.Options, "sluice-options", "",
		"extra configuration of Sluice, as YAML, for a system sluice-options")
	f.StringVar(&c.Before, "before", "", "an older sluice, or its directory, beside this one as sluice-before")
	f.IntVar(&c.Worst, "worst", c.Worst, "number of slowest packets of each trial to print with their whole path")
	f.StringVar(&c.JSON, "json", "", "save the results in this file")
	return command
}
