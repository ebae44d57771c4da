package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/test/vm"
	"sluice.dev/sluice/test/vm/guest"
	"sluice.dev/sluice/test/vm/matrix"
)

func vmTestCommand() *cobra.Command {
	c := matrix.Config{Out: os.Stdout}
	set, only := string(matrix.Short), ""
	command := &cobra.Command{
		Use:   "test",
		Short: "Try the gateway on emulated NICs and other kernels, a guest each",
		Long: "test boots a guest for each pair of NICs and each kernel of a set, runs `sluice run` between\n" +
			"them, sends TCP and UDP of both families, kills the daemon, takes links down, and checks its\n" +
			"laws. It prints each case, its guest, mode and result. Processors are emulated, so it measures\n" +
			"no speed.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if c.Rows, err = rowsOf(matrix.Set(set), only); err != nil {
				return err
			}
			if c.Cache, err = vm.UserCache(cmd.ErrOrStderr()); err != nil {
				return err
			}
			if c.Self, err = os.Executable(); err != nil {
				return err
			}
			for _, path := range []*string{&c.Sluice, &c.Logs} {
				if *path, err = filepath.Abs(*path); err != nil {
					return err
				}
			}
			return matrix.Run(cmd.Context(), c)
		},
	}
	f := command.Flags()
	f.StringVar(&set, "set", set, "which guests: ci, short or full")
	f.StringVar(&only, "only", "",
		"of the set, guests whose name matches this regular expression: trixie-backports igb+igb")
	f.StringVar(&c.Sluice, "sluice", besideMe("sluice"), "the sluice binary, without cgo")
	f.StringVar(&c.Logs, "logs", "bench/out/vm", "directory for the guests' output")
	f.IntVar(&c.Patience, "patience", 1, "multiplies every time limit, for a busy machine")
	return command
}

func rowsOf(set matrix.Set, only string) ([]matrix.Row, error) {
	rows, err := matrix.Rows(set)
	if err != nil {
		return nil, err
	}
	matches, err := regexp.Compile(only)
	if err != nil {
		return nil, fmt.Errorf("--only: %w", err)
	}
	var left []matrix.Row
	var names []string
	for _, r := range rows {
		names = append(names, r.String())
		if matches.MatchString(r.String()) {
			left = append(left, r)
		}
	}
	if len(left) == 0 {
		return nil, fmt.Errorf("--only %q: set %s has no such guest; it has %q", only, set, names)
	}
	return left, nil
}

// vmGuestCommand is the command that vm test runs in a guest.
func vmGuestCommand() *cobra.Command {
	c := guest.Config{Results: os.Stdout, Log: os.Stderr}
	var leftMode, rightMode, vlan string
	command := &cobra.Command{
		Use:    "guest",
		Short:  "Try the gateway on the NICs left and right of this guest",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, m := range []string{leftMode, rightMode} {
				if !slices.Contains([]guest.Mode{guest.ZeroCopy, guest.Copy, guest.Generic}, guest.Mode(m)) {
					return fmt.Errorf("no mode %q", m)
				}
			}
			c.Left, c.Right = guest.Mode(leftMode), guest.Mode(rightMode)
			if c.VLAN = guest.VLAN(vlan); !slices.Contains([]guest.VLAN{guest.Untagged, guest.Gateway, guest.Devices},
				c.VLAN) {
				return fmt.Errorf("no way %q to handle VLANs", vlan)
			}
			return guest.Run(cmd.Context(), c)
		},
	}
	f := command.Flags()
	f.StringVar(&c.Sluice, "sluice", "", "the sluice binary")
	f.StringVar(&leftMode, "left", "", "the mode that left must be in")
	f.StringVar(&rightMode, "right", "", "the mode that right must be in")
	f.StringVar(&c.Options, "options", "", "extra configuration of the gateway")
	f.IntVar(&c.MTU, "mtu", 0, "of both segments; 0 is 1500")
	f.StringVar(&vlan, "vlan", "", "VLAN tags are handled by the gateway, by devices, or not at all")
	f.StringSliceVar(&c.Cases, "cases", nil, "cases to run, in order")
	f.Int64Var(&c.Bytes, "bytes", 1e6, "of each TCP transfer")
	f.IntVar(&c.Kills, "kills", 1, "how often to kill the daemon")
	f.IntVar(&c.TakeOvers, "take-overs", 1, "how often the next daemon takes over from the running one")
	f.IntVar(&c.Patience, "patience", 1, "multiplies every time limit")
	return command
}
