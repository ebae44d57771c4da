package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/test/vm"
)

func vmCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "vm",
		Short: "Run a command in a QEMU guest: other kernels, drivers of real NICs",
		Long: "vm runs a command in a guest with an emulated processor, on a Debian kernel, with the drivers of\n" +
			"real NICs: igb and virtio-net do zero-copy there. It installs nothing. Its figures do not show\n" +
			"real speed.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	command.AddCommand(vmFetchCommand(), vmRunCommand(), vmTestCommand(), vmEmulateCommand(), vmGuestCommand())
	return command
}

func vmFetchCommand() *cobra.Command {
	var suites []string
	refresh := false
	command := &cobra.Command{
		Use:   "fetch",
		Short: "Fetch QEMU and kernels by apt into the user's cache",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cache, err := vm.UserCache(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			for _, suite := range suites {
				k, err := cache.Fetch(cmd.Context(), suite, refresh)
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%-20s %-24s %s\n", k.Suite, k.Release, k.Dir)
			}
			return nil
		},
	}
	command.Flags().StringSliceVar(&suites, "kernel", []string{"trixie-backports"},
		"suites of which to fetch the newest kernel: "+strings.Join(vm.Kernels, ", "))
	command.Flags().BoolVar(&refresh, "refresh", false, "fetch newer kernels than the cache has")
	return command
}

func vmRunCommand() *cobra.Command {
	c := vm.Config{Stdout: os.Stdout, Stderr: os.Stderr}
	kernel := ""
	var pairs, nics, env []string
	command := &cobra.Command{
		Use:   "run [flags] -- COMMAND ARGS...",
		Short: "Boot a guest, run a command in it as root, end with its status",
		Long: "run boots a guest whose root is this machine's, read-only; writes go to memory, and only the\n" +
			"directory of --share is kept. A pair is a NIC NAME and the virtio-net NAME-peer connected to it.\n" +
			"bpffs, tracefs, debugfs and cgroup2 are mounted; modprobe and ethtool are available.",
		Example: "  sluice-bench vm run --pair left=igb --pair right=virtio-net -- ethtool -i left",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if c.NICs, err = parseNICs(pairs, nics); err != nil {
				return err
			}
			if c.Cache, err = vm.UserCache(cmd.ErrOrStderr()); err != nil {
				return err
			}
			if c.Kernel, err = c.Cache.Fetch(cmd.Context(), kernel, false); err != nil {
				return err
			}
			if c.Dir, err = os.Getwd(); err != nil {
				return err
			}
			if c.Share != "" {
				if c.Share, err = filepath.Abs(c.Share); err != nil {
					return err
				}
			}
			c.Args, c.Env = args, append(vm.Environment(os.Environ()), env...)
			return vm.Run(cmd.Context(), c)
		},
	}
	f := command.Flags()
	f.StringVar(&kernel, "kernel", "trixie-backports",
		"suite whose newest kernel to use: "+strings.Join(vm.Kernels, ", "))
	f.StringArrayVar(&pairs, "pair", nil,
		"NAME=MODEL: a NIC, connected to NAME-peer; models: igb, virtio-net, e1000e, e1000, vmxnet3")
	f.StringArrayVar(&nics, "nic", nil, "NAME=MODEL@HUB: a NIC on a wire with all other NICs of the same HUB")
	f.StringArrayVar(&c.Modules, "module", nil, "a kernel module to load first")
	f.StringArrayVar(&env, "env", nil, "NAME=VALUE for the command")
	f.StringVar(&c.Memory, "memory", "2G", "the guest's memory")
	f.IntVar(&c.CPUs, "cpus", 2, "the guest's processors")
	f.StringVar(&c.Share, "share", "", "a directory in which the guest may write, under the same name")
	f.StringVar(&c.Console, "console", "", "a file for the kernel's messages")
	f.DurationVar(&c.Limit, "limit", 10*time.Minute, "end the guest after this time")
	return command
}

func vmEmulateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "emulate -- PROGRAM ARGS...",
		Short: "Run a static arm64 program on an emulated processor",
		Long: "emulate runs a program for Linux on arm64, with this machine's kernel and files, on an emulated\n" +
			"processor. A program that executes itself again fails: the kernel does not know of the\n" +
			"emulation.",
		Example: "  GOARCH=arm64 CGO_ENABLED=0 go test -exec 'sluice-bench vm emulate --' ./nat",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cache, err := vm.UserCache(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return cache.Emulate(cmd.Context(), args)
		},
	}
}

func parseNICs(pairs, nics []string) (all []vm.NIC, err error) {
	for _, p := range pairs {
		two, err := vm.ParsePair(p)
		if err != nil {
			return nil, fmt.Errorf("--pair: %w", err)
		}
		all = append(all, two...)
	}
	for _, n := range nics {
		one, err := vm.ParseNIC(n)
		if err != nil {
			return nil, fmt.Errorf("--nic: %w", err)
		}
		all = append(all, one)
	}
	return all, nil
}
