package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/bench/pipeline"
)

func stepsCommand() *cobra.Command {
	c := pipeline.StepsDefaults()
	command := &cobra.Command{
		Use:   "steps",
		Short: "Measure a worker's longest step while tables change, flows expire, counters are published",
		Long: "steps gives a real worker, run as in the daemon, a steady stream of packets in memory beside\n" +
			"another load, and prints its longest steps: by the clock, by the processor time of its thread,\n" +
			"and without steps in which the kernel ran another thread or the Go runtime stopped this one.\n" +
			"Every 5 ms, in turn with the worker, an empty loop runs on the same thread and shows the delays\n" +
			"of the machine itself. It needs neither root nor a network.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Out = os.Stdout
			return pipeline.RunSteps(cmd.Context(), c)
		},
	}
	f := command.Flags()
	f.StringSliceVar(&c.Loads, "beside", nil, "only these: "+strings.Join(pipeline.StepLoads(), ", "))
	f.DurationVar(&c.Length, "length", c.Length, "of each measurement")
	f.IntVar(&c.Repeat, "repeat", c.Repeat, "measurements of each load")
	f.IntVar(&c.CPU, "cpu", c.CPU, "the core of the worker; -1 is the last")
	f.StringVar(&c.JSON, "json", "", "save the figures in this file")
	return command
}
