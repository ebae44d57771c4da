// Command build builds the programs that test/upstream runs, if they are not in the user's cache
// yet, and prints where e2e.test is.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"sluice.dev/sluice/test/upstream"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	p, err := upstream.Build(ctx, os.Stderr)
	if err != nil {
		stop()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(p.Test)
}
