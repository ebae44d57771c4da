package main

import (
	"github.com/spf13/cobra"

	"sluice.dev/sluice/test/soak"
)

func soakCommand() *cobra.Command {
	c := soak.Defaults()
	command := &cobra.Command{
		Use:   "soak",
		Short: "Run the gateway on real traffic for a long time, with faults, floods and changes all the while",
		Long: "soak runs the gateway with established TCP and UDP flows, new connections and large bodies,\n" +
			"while endpoints and Services change, and injects one fault after another: links that flap,\n" +
			"floods, backends that end, kill -9, hand-overs, a stopped process. It fails if an established\n" +
			"connection breaks although its backend did not end, if a Service does not answer after a fault,\n" +
			"or if memory, descriptors, goroutines, threads, pins, files or interfaces grow. It needs Linux\n" +
			"6.12, root.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return soak.Run(cmd.Context(), c) },
	}
	f := command.Flags()
	f.StringVar(&c.Sluice, "sluice", besideMe("sluice"), "the sluice binary")
	f.DurationVar(&c.Duration, "duration", c.Duration, "of all rounds")
	f.IntVar(&c.Connections, "connections", c.Connections, "established TCP connections")
	f.IntVar(&c.Datagrams, "datagrams", c.Datagrams, "UDP flows")
	f.IntVar(&c.FloodRate, "flood-rate", c.FloodRate, "packets a second of a flood")
	f.Uint64Var(&c.Seed, "seed", c.Seed, "of faults and their moments; 0 takes one from the clock")
	return command
}
