package main

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/bench/gaps"
)

func gapsCommand() *cobra.Command {
	c := gaps.Defaults()
	quick := false
	command := &cobra.Command{
		Use:   "gaps",
		Short: "Measure how long a packet worker stands still because of the Go runtime",
		Long: "gaps runs the control plane and a worker's loop in one process, changes endpoints of thousands of\n" +
			"Services, and counts the gaps in the loop, against a C loop on the same CPU in alternating windows.\n" +
			"The default takes about 8 minutes. Variants are ways to set up the process:\n" + gaps.Variants(),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			c.Child = []string{self, "gaps", "child"}
			if quick && !cmd.Flags().Changed("windows") {
				c.Windows = 5
			}
			if quick && !cmd.Flags().Changed("duration") {
				c.Window = 2 * time.Second
			}
			_, err = gaps.Run(cmd.Context(), c)
			return err
		},
	}
	f := command.Flags()
	f.StringSliceVar(&c.Variants, "variants", c.Variants, "which to measure, or all")
	f.IntVar(&c.Windows, "windows", c.Windows, "windows of each variant, and of C beside it")
	f.DurationVar(&c.Window, "duration", c.Window, "length of a window")
	f.BoolVar(&quick, "quick", false, "5 windows of 2 s")
	f.IntVar(&c.Services, "services", c.Services, "Services in all")
	f.IntVar(&c.Endpoints, "endpoints", c.Endpoints, "endpoints of each Service")
	f.IntVar(&c.Rate, "rate", c.Rate, "changes a second")
	f.IntVar(&c.CPU, "cpu", c.CPU, "the worker's CPU; -1 is the last that this process may use")
	f.StringVar(&c.Profiles, "profiles", "", "directory for a pprof profile of each variant's allocations; it is made")
	f.StringVar(&c.JSON, "json", "", "file to save the results in")
	command.AddCommand(&cobra.Command{
		Use: "child", Short: "The measured process", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			// What the terminal says to all processes is for the one that measures.
			return gaps.RunChild(context.WithoutCancel(cmd.Context()), strings.Join(args, ""), os.Stdin, os.Stdout)
		},
	})
	return command
}
