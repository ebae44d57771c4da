package main

import (
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/bench/rollout"
)

func rolloutCommand() *cobra.Command {
	c := rollout.Defaults()
	command := &cobra.Command{
		Use:   "rollout",
		Short: "Replace all pods of a Service under load, on Sluice and on kube-proxy",
		Long: "rollout runs etcd and kube-apiserver with thousands of Services, has one of them replace all its " +
			"pods\n" +
			"as a Deployment does while clients open new connections, and prints for each system how many failed,\n" +
			"how many went to pods that were gone, how long until none did, and the control process's CPU time.\n" +
			"It needs Linux 6.12, root, and for kube-proxy the tools nft and iptables; the first run builds the\n" +
			"control plane, which takes minutes (make -C test cluster-binaries).",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := rollout.Run(cmd.Context(), c)
			return err
		},
	}
	f := command.Flags()
	f.StringVar(&c.Sluice, "sluice", besideMe("sluice"), "the sluice binary")
	f.StringSliceVar(&c.Systems, "systems", c.Systems, "systems to measure, of "+strings.Join(rollout.Systems, ", "))
	f.IntVar(&c.Services, "services", c.Services, "Services in all")
	f.IntVar(&c.Pods, "pods", c.Pods, "endpoints of each Service that does not roll")
	f.IntVar(&c.Replicas, "replicas", c.Replicas, "pods of the Service that rolls")
	f.IntVar(&c.Rate, "rate", c.Rate, "connections a second to the Service that rolls")
	f.DurationVar(&c.Grace, "grace", c.Grace, "of a pod from terminating to gone")
	f.DurationVar(&c.Timeout, "timeout", c.Timeout, "of a client's connection")
	f.Uint64Var(&c.Seed, "seed", c.Seed, "of the times that pods take to start")
	return command
}
