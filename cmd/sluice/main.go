// Command sluice is the gateway and its command line: `sluice run` is the daemon, the other
// commands send requests to it. See package cli for the commands and package daemon for how the
// parts are put together.
package main

import (
	"context"
	"os"

	"sluice.dev/sluice/cmd/sluice/internal/cleanup"
	"sluice.dev/sluice/cmd/sluice/internal/cli"
	"sluice.dev/sluice/cmd/sluice/internal/daemon"
	"sluice.dev/sluice/cmd/sluice/internal/devices"
	"sluice.dev/sluice/cmd/sluice/internal/explain"
	"sluice.dev/sluice/cmd/sluice/internal/reload"
)

func main() {
	app := cli.App{Run: daemon.Run, Reload: reload.Daemon, StartError: devices.StartError, Explain: explain.Offline,
		Cleanup: cleanup.Run, Out: os.Stdout, Err: os.Stderr}
	os.Exit(app.Main(context.Background(), os.Args[1:]))
}
