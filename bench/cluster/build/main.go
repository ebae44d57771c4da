// Command build builds the binaries that bench/cluster runs, if they are not in the
// user's cache yet, and prints the directory that they are in.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"sluice.dev/sluice/bench/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	b, err := cluster.Build(ctx, os.Stderr)
	if err != nil {
		stop()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(b.Dir)
}
