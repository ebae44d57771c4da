package main

import (
	"errors"
	"io"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/bench/report"
	"sluice.dev/sluice/bench/results"
)

func reportCommand() *cobra.Command {
	var from []string
	var docs, page string
	command := &cobra.Command{
		Use:   "report --from FILE... [FILE...]",
		Short: "Print results saved with --json, or write them into README and docs",
		Long: "report reads files that the other commands saved with --json and prints every figure as\n" +
			"Markdown. With --docs it writes the figures of README.md and docs/benchmarks.md and the plots of\n" +
			"docs/plots into a source tree instead, with --page those of another page of the tree. Both refuse\n" +
			"files of two machines, two files of one experiment, and commits that are not in the tree's history.",
		Example: "  sluice-bench report --from bench/out/*.json >bench/out/report.md",
		RunE: func(cmd *cobra.Command, args []string) error {
			// A shell writes the second and later files of a pattern as arguments.
			files := slices.Concat(from, args)
			if len(files) == 0 {
				return errors.New("no files: name them with --from, as in --from bench/out/*.json")
			}
			runs, err := results.LoadAll(files...)
			if err != nil {
				return err
			}
			return writeReport(cmd.OutOrStdout(), runs, docs, page)
		},
	}
	f := command.Flags()
	f.StringArrayVar(&from, "from", nil, "files to read")
	f.StringVar(&docs, "docs", "",
		"the root of the source tree whose README, docs/benchmarks.md and docs/plots to write")
	f.StringVar(&page, "page", "", "a Markdown page of the source tree whose figures to write")
	return command
}

func writeReport(out io.Writer, runs []*results.Run, docs, page string) error {
	known := report.Experiments()
	if docs == "" && page == "" {
		return report.Write(out, runs, known)
	}
	if docs != "" {
		if err := report.WriteDocs(docs, runs, known, report.History(docs)); err != nil {
			return err
		}
	}
	if page != "" {
		return report.WritePage(page, runs, known, report.History(filepath.Dir(page)))
	}
	return nil
}
