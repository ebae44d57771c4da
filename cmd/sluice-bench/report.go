package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/bench/report"
	"sluice.dev/sluice/bench/results"
)

func reportCommand() *cobra.Command {
	var from []string
	var html, plots, docs, page string
	command := &cobra.Command{
		Use:   "report --from FILE... [FILE...]",
		Short: "Render results saved with --json: one HTML page, plots, the figures of README and docs",
		Long: "report reads files that the other commands saved with --json and writes the requested forms: one HTML " +
			"page\n" +
			"that needs no network, every plot as SVG and PNG, or, into the source tree that --docs names, the " +
			"figures of\n" +
			"README.md and docs/benchmarks.md and docs/plots; or those of another page of the tree, which --page " +
			"names. Of a\n" +
			"figure that several files have, the HTML page shows the newest. --docs and --page refuse files of two " +
			"machines,\n" +
			"two files of one experiment, and commits that are not in the tree's history.",
		Example: "  sluice-bench report --from bench/out/*.json --html bench/out/report.html --plots bench/out/plots",
		RunE: func(cmd *cobra.Command, args []string) error {
			// A shell writes the second and later files of a pattern as arguments.
			files := slices.Concat(from, args)
			switch {
			case len(files) == 0:
				return errors.New("no files: name them with --from, as in --from bench/out/*.json")
			case html == "" && plots == "" && docs == "" && page == "":
				return errors.New("nothing to write: say --html FILE, --plots DIRECTORY, --docs TREE or --page FILE")
			}
			runs, err := results.LoadAll(files...)
			if err != nil {
				return err
			}
			return writeReport(runs, html, plots, docs, page)
		},
	}
	f := command.Flags()
	f.StringArrayVar(&from, "from", nil, "files to read")
	f.StringVar(&html, "html", "", "the page to write")
	f.StringVar(&plots, "plots", "", "the directory for plots")
	f.StringVar(&docs, "docs", "",
		"the root of the source tree whose README, docs/benchmarks.md and docs/plots to write")
	f.StringVar(&page, "page", "", "a Markdown page of the source tree whose figures to write")
	return command
}

func writeReport(runs []*results.Run, html, plots, docs, page string) error {
	known := report.Experiments()
	if html != "" {
		text, err := report.HTML(runs, known)
		if err != nil {
			return err
		}
		if err := os.WriteFile(html, text, 0o644); err != nil {
			return err
		}
		fmt.Printf("%s: %d KiB\n", html, len(text)>>10)
	}
	if plots != "" {
		n, err := report.WritePlots(plots, runs)
		if err != nil {
			return err
		}
		fmt.Printf("%s: %d files\n", plots, n)
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
