package main

import (
	"os"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/bench/report"
)

// benchCommand has the commands of the Makefile's bench targets.
func benchCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "bench",
		Short: "Run sets of experiments and Go benchmarks, and keep baselines",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	command.AddCommand(benchRun(), benchGo(), benchCompare(), benchBaseline())
	return command
}

func benchRun() *cobra.Command {
	c := report.Config{Set: "quick", Out: "bench/out", Stdout: os.Stdout, Stderr: os.Stderr}
	command := &cobra.Command{
		Use:   "run",
		Short: "Run experiments one after another and save their results",
		Long: "run runs a set of experiments. Each writes NAME.json, which sluice-bench report reads, and\n" +
			"NAME.log. If one fails, the others still run, and the report has a line for it. The quick set\n" +
			"takes a minute, the full one hours.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if c.Bench, err = os.Executable(); err != nil {
				return err
			}
			return report.Run(cmd.Context(), c)
		},
	}
	f := command.Flags()
	f.StringVar(&c.Set, "set", c.Set, "quick or full")
	f.StringSliceVar(&c.Only, "only", nil, "names of experiments; default: all of the set")
	f.StringVar(&c.Out, "out", c.Out, "directory for results")
	f.StringVar(&c.Note, "note", "", "a remark to save with each result, such as \"short run\"")
	return command
}

func benchGo() *cobra.Command {
	b := report.Benchmarks{Dir: ".", Stdout: os.Stdout, Progress: os.Stderr}
	command := &cobra.Command{
		Use:   "go",
		Short: "Run the Go benchmarks of the packet path, for benchstat",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return b.Run(cmd.Context()) },
	}
	f := command.Flags()
	f.IntVar(&b.Count, "count", 6, "samples of each")
	f.StringVar(&b.BenchTime, "benchtime", "20ms", "time of each sample, or a number of iterations as 1000x")
	f.StringVar(&b.Out, "out", "bench/out", "directory for go.txt")
	return command
}

func benchCompare() *cobra.Command {
	baseline, now := "bench/baselines", "bench/out"
	command := &cobra.Command{
		Use:   "compare",
		Short: "Compare Go benchmarks with the baseline, using benchstat",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return report.Compare(cmd.Context(), ".", baseline, now, os.Stdout)
		},
	}
	command.Flags().StringVar(&baseline, "baseline", baseline, "directory of the baseline's go.txt")
	command.Flags().StringVar(&now, "now", now, "directory of the other go.txt")
	return command
}

func benchBaseline() *cobra.Command {
	baselines, goDir, experiments := "bench/baselines", "bench/out", "bench/out"
	command := &cobra.Command{
		Use:   "baseline",
		Short: "Replace the baselines with the last results, from one machine and commits of this tree's history",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return report.Adopt(baselines, goDir, experiments, report.Experiments(), report.History("."))
		},
	}
	f := command.Flags()
	f.StringVar(&baselines, "to", baselines, "directory of the baselines")
	f.StringVar(&goDir, "go", goDir, "directory of go.txt")
	f.StringVar(&experiments, "experiments", experiments, "directory of the experiments' results")
	return command
}
