// Command build builds the binaries that test/bed/cluster runs, if they are not in the
// user's cache yet, and prints the directory that they are in. With -tools it fetches
// what kube-proxy runs in mode ipvs, too, for a guest that has no network.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"sluice.dev/sluice/test/bed/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	tools := flag.Bool("tools", false, "fetch ipset and iptables, too")
	flag.Parse()
	b, err := cluster.Build(ctx, os.Stderr)
	if err == nil && *tools {
		_, err = cluster.FetchProxyTools(ctx, os.Stderr)
	}
	if err != nil {
		stop()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(b.Dir)
}
