package main

import (
	"errors"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/bench/report"
	"sluice.dev/sluice/bench/results"
)

func reportCommand() *cobra.Command {
	var from []string
	var docs string
	command := &cobra.Command{
		Use:   "report --from FILE... [FILE...]",
		Short: "Print results saved with --json, or write them into README and docs",
		Long: "report reads files that the other commands saved with --json and prints every figure as\n" +
			"Markdown. With --docs it writes the figures of README.md and docs/benchmarks.md and the plots of\n" +
			"docs/plots into a source tree instead: the files of a directory are a column, and the first\n" +
			"directory must have every ratio of README. It rejects a directory with files of two machines, two\n" +
			"files of one experiment, and commits that are not in the tree's history.",
		Example: "  sluice-bench report --from bench/out/*.json >bench/out/report.md",
		RunE: func(cmd *cobra.Command, args []string) error {
			// A shell writes the second and later files of a pattern as arguments.
			files := slices.Concat(from, args)
			if len(files) == 0 {
				return errors.New("no files: name them with --from, as in --from bench/out/*.json")
			}
			if docs != "" {
				return writeDocs(docs, files)
			}
			runs, err := results.LoadAll(files...)
			if err != nil {
				return err
			}
			return report.Write(cmd.OutOrStdout(), runs, report.Experiments())
		},
	}
	f := command.Flags()
	f.StringArrayVar(&from, "from", nil, "files to read")
	f.StringVar(&docs, "docs", "",
		"the root of the source tree whose README, docs/benchmarks.md and docs/plots to write")
	return command
}

// writeDocs writes the figures of the files into the tree at root.
func writeDocs(root string, files []string) error {
	var folders []string
	of := make(map[string][]string)
	for _, f := range files {
		folder := filepath.Dir(f)
		if of[folder] == nil {
			folders = append(folders, folder)
		}
		of[folder] = append(of[folder], f)
	}
	var sets [][]*results.Run
	for _, folder := range folders {
		runs, err := results.LoadAll(of[folder]...)
		if err != nil {
			return err
		}
		sets = append(sets, runs)
	}
	return report.WriteDocs(root, sets, report.Experiments(), report.History(root))
}
