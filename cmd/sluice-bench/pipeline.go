package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/bench/pipeline"
)

func pipelineCommand() *cobra.Command {
	c := pipeline.Defaults()
	command := &cobra.Command{
		Use:   "pipeline",
		Short: "Measure a worker's time per packet, without a kernel, beside the same in C",
		Long: "pipeline drives a real worker over in-memory links, with a real table of services and flows, and\n" +
			"measures the time of its steps: nanoseconds per packet by number of flows, new flows, a full\n" +
			"table, colliding flows, two workers, many services, updates. A C program that does the same work\n" +
			"runs in turn with it on the same core (C; and one by one, without batches and prefetches, to\n" +
			"show their effect); it is built with clang, gcc or cc. It needs neither root nor a network.\n\n" +
			"With --before only an older build's worker and this one's are measured, in turn: for each figure\n" +
			"the ratio now/before, a 95 % interval of its median, and whether it is unchanged within 3 %.",
		Example: "  sluice-bench pipeline --scenario steady --flows 1000,100000\n" +
			"  sluice-bench pipeline --before ../older/bin/sluice-bench --flows 100000",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			c.Out = os.Stdout
			if c.Bench, err = os.Executable(); err != nil {
				return err
			}
			if c.Before != "" && !cmd.Flags().Changed("repeat") {
				c.Repeat = pipeline.BeforeRepeat
			}
			if c.Before != "" && !cmd.Flags().Changed("reference") {
				c.Reference = false
			}
			return pipeline.Run(cmd.Context(), c)
		},
	}
	f := command.Flags()
	f.StringSliceVar(&c.Scenarios, "scenario", nil, "only these: "+strings.Join(pipeline.Scenarios(), ", "))
	f.IntSliceVar(&c.Flows, "flows", nil, "numbers of flows of the sweep (default 1000,100000,1000000)")
	f.BoolVar(&c.Full, "full", false, "the sweep continues to 10,000,000 flows: 5 GB of memory")
	f.BoolVar(&c.IPv4, "ipv4", c.IPv4,
		"measure IPv4 (fill, collisions, two-workers, services and updates are over IPv4 in any case)")
	f.BoolVar(&c.IPv6, "ipv6", c.IPv6, "measure IPv6")
	f.BoolVar(&c.Reference, "reference", c.Reference, "run the same work in C beside it; needs clang, gcc or cc")
	f.IntVar(&c.Repeat, "repeat", c.Repeat, "samples of each figure, in turn with the figure it is compared to")
	f.IntVar(&c.Chunks, "windows", c.Chunks, "chunks of 4096 packets per sample; a sample is their median")
	f.IntVar(&c.CPU, "cpu", c.CPU, "the core to measure on; -1 is the last")
	f.StringVar(&c.Profile, "profile", "", "save a CPU profile of the whole run in this file, for go tool pprof")
	f.StringVar(&c.JSON, "json", "", "save the figures in this file")
	f.StringVar(&c.Before, "before", "",
		"an older sluice-bench, or its directory: measure it and this one in turn (default: scenario steady; "+
			"without C)")
	f.BoolVar(&c.FailSlower, "fail-slower", false,
		"with --before: exit status 1 if a figure is slower by more than 3 %")
	command.AddCommand(turnsCommand())
	return command
}

// turnsCommand is the command that --before runs in builds that have it.
func turnsCommand() *cobra.Command {
	c := pipeline.Defaults()
	c.Reference = false
	speaks := false
	command := &cobra.Command{
		Use: "turns", Short: "The measured process of --before", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if speaks {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), pipeline.TurnsVersion)
				return err
			}
			return pipeline.RunTurns(cmd.Context(), c, os.Stdin, os.Stdout)
		},
	}
	f := command.Flags()
	f.IntSliceVar(&c.Flows, "flows", nil, "number of flows")
	f.BoolVar(&c.IPv4, "ipv4", true, "over IPv4")
	f.BoolVar(&c.IPv6, "ipv6", true, "over IPv6")
	f.IntVar(&c.CPU, "cpu", c.CPU, "the core to measure on")
	f.BoolVar(&speaks, "speaks", false, "only print the version of its input and output")
	return command
}
