package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/test/bed/cluster/nodes"
	"sluice.dev/sluice/test/bed/cluster/single"
)

// clusterOptions are the flags of the command.
type clusterOptions struct {
	workers int
	images  []string
	bare    bool
	values  string
	env     string
}

func clusterCommand() *cobra.Command {
	var o clusterOptions
	command := &cobra.Command{
		Use:   "cluster",
		Short: "Start a Kubernetes cluster on this machine with the gateway in front, and keep it until ^C",
		Long: "cluster starts etcd, API server, controllers, scheduler and nodes of kubelet, containerd and runc in\n" +
			"namespaces, installs the chart on the gateway's node, and waits. The first time it builds Kubernetes\n" +
			"and downloads containerd, which takes minutes. It needs root, Go and the source tree, and apt-get.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	command.Flags().IntVar(&o.workers, "workers", 1, "nodes beside the gateway's")
	command.Flags().StringSliceVar(&o.images, "image", nil,
		"archive of images for all nodes (`docker save`, or an OCI layout)")
	command.Flags().BoolVar(&o.bare, "bare", false, "do not install the chart")
	command.Flags().StringVar(&o.values, "values", "", "file with values of the chart, over those for this cluster")
	command.Flags().StringVar(&o.env, "env", "",
		"file for the cluster's addresses and kubeconfigs, as shell variables, written when it is ready")
	return command
}

func (o *clusterOptions) run(ctx context.Context) (err error) {
	c, err := single.Start(ctx, single.Config{Workers: o.workers, Named: true, Progress: os.Stdout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for _, n := range c.Nodes() {
		for _, file := range o.images {
			if err := n.ImportFile(ctx, file); err != nil {
				return err
			}
		}
	}
	if !o.bare {
		if err := o.install(ctx, c); err != nil {
			return err
		}
	}
	env, err := environment(c)
	if err != nil {
		return err
	}
	fmt.Print("\n", env, "\nThe cluster runs until ^C.\n")
	if o.env != "" {
		if err := replaceFile(o.env, env); err != nil {
			return err
		}
		defer os.Remove(o.env)
	}
	<-ctx.Done()
	return nil
}

func (o *clusterOptions) install(ctx context.Context, c *single.Cluster) error {
	const version = "here"
	values := c.Values(version)
	if o.values != "" {
		more, err := os.ReadFile(o.values)
		if err != nil {
			return err
		}
		if values, err = single.MergeValues(values, string(more)); err != nil {
			return err
		}
	}
	if err := c.Image(ctx, version, c.Gateway); err != nil {
		return err
	}
	manifests, err := c.Manifests(ctx, values)
	if err != nil {
		return err
	}
	if err := c.Apply(ctx, manifests); err != nil {
		return err
	}
	if err := c.Installed(ctx, 5*time.Minute); err != nil {
		return err
	}
	fmt.Println("the gateway's pod is Ready")
	return nil
}

// environment returns shell variables with which to reach the cluster: from the machine, and from
// the client's namespace, which is outside of the cluster and has the gateway as its router.
func environment(c *single.Cluster) (string, error) {
	inClient, err := c.KubeconfigIn(c.Client0)
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("KUBECONFIG=%s\nCLIENT_KUBECONFIG=%s\nCLIENT_NETNS=%s\nGATEWAY_ADDRESS=%s\n"+
		"GATEWAY_ADDRESS6=%s\nSTATUS_SOCKET=%s\n",
		c.AdminConfig, inClient, c.Client0.NetnsName(), c.Net.Gateway.Addr4(), c.Net.Gateway.Addr6(),
		c.Gateway.Path(single.StatusSocket))
	for _, n := range c.Nodes() {
		text += nodeLine(n)
	}
	return text, nil
}

// nodeLine is the variable with a node's PID, for nsenter -a -t PID.
func nodeLine(n *nodes.Node) string { return fmt.Sprintf("NODE_%s_PID=%d\n", n.Name, n.PID()) }

// replaceFile writes a file atomically: a process that waits for it never reads a partial file.
func replaceFile(path, text string) error {
	next := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".next")
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(next, path)
}
