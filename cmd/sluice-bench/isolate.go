package main

import (
	"os"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/test/bed/isolate"
	"sluice.dev/sluice/test/vm"
)

func isolateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "isolate -- PROGRAM ARGS...",
		Short: "Run a program in namespaces of its own, for tests that need root",
		Long: "isolate runs a program in network, mount and PID namespaces of its own, with an empty /run,\n" +
			"/dev/shm and /sys/fs/bpf and only a loopback interface. When the program ends, isolate kills the\n" +
			"processes that it started, and removes its temporary files. So several test binaries can run at\n" +
			"the same time.",
		Example: "  go test -tags root -p 3 -exec 'sluice-bench isolate --' ./host/...",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			status, err := isolate.Run(cmd.Context(), args, os.Stdout, os.Stderr)
			if err == nil && status != 0 {
				err = &vm.ExitError{Status: status}
			}
			return err
		},
	}
}
