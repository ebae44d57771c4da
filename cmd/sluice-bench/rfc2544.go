package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/test/bed/stateless"
)

func rfc2544Command() *cobra.Command {
	var s statelessFlags
	var search stateless.Search
	var lowest, highest string
	var loss float64
	command := &cobra.Command{
		Use:   "rfc2544",
		Short: "Search for the highest rate without loss (RFC 2544, section 26.1), and measure latency below it",
		Long: "rfc2544 halves the interval of rates until it finds the highest rate with at most --loss, and\n" +
			"confirms it with a longer trial. Then it measures latency at 10, 50 and 90 % of that rate. The\n" +
			"RFC tolerates no loss (--loss 0) and requires trials of 60 s; a veth's own ring loses some\n" +
			"packets, hence the default of 0.1 %.",
		Example: "  sluice-bench rfc2544 --loopback\n" +
			"  sluice-bench rfc2544 --tx eth1 --rx eth2 --i-own-this-network --to-mac 02:00:00:00:00:01 --loss 0 " +
			"--duration 60s",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e, err := s.experiment()
			if err != nil {
				return err
			}
			if search.Min, err = stateless.ParseRate(lowest); err != nil {
				return err
			}
			if search.Max, err = stateless.ParseRate(highest); err != nil {
				return err
			}
			if loss < 0 || loss >= 100 {
				return fmt.Errorf("--loss %g: a percentage from 0 to less than 100 is possible", loss)
			}
			search.Loss = loss / 100
			if loss == 0 {
				search.Loss = stateless.NoLoss
			}
			e.Search = &search
			return e.Run(cmd.Context())
		},
	}
	s.register(command)
	f := command.Flags()
	f.StringVar(&lowest, "min", "1k", "lowest rate, packets per second")
	f.StringVar(&highest, "max", "10M", "highest rate")
	f.Float64Var(&loss, "loss", 0.1, "tolerated loss, percent")
	f.Float64Var(&search.Resolution, "resolution", 0.02, "how close, as a share of the rate")
	f.DurationVar(&search.Duration, "duration", time.Second, "of each trial")
	f.DurationVar(&search.Confirm, "confirm", 0, "of the confirming trial; default three times --duration")
	f.IntVar(&search.Of, "of", 3, "trials per rate, of which most must be good (RFC 2544: 1)")
	f.IntVar(&search.Trials, "trials", 60, "maximum number of trials")
	return command
}
