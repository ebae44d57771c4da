// Kubectl-sluice runs commands of sluice on all gateways of a cluster. kubectl finds it in the
// PATH, and runs it as `kubectl sluice`.
package main

import (
	"context"
	"os"
	"os/signal"

	"sluice.dev/sluice/gateway/fleet"
)

// version is written by the linker.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(fleet.Main(ctx, version, os.Args[1:], os.Stdout, os.Stderr))
}
