// Command run runs every test of the fault plan (package faults), from the root of the tree.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"sluice.dev/sluice/test/faults"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := faults.Run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "the fault plan:", err)
		os.Exit(1)
	}
}
