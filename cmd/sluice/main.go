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
	"sluice.dev/sluice/internal/logs"
)

func main() {
	app := cli.App{Run: daemon.Run, Reload: reload.Daemon, StartError: devices.StartError, Explain: explain.Offline,
		Cleanup: cleanup.Run, Out: os.Stdout, Err: logs.Stderr}
	code := app.Main(context.Background(), os.Args[1:])
	logs.Stderr.Flush(logs.FlushTimeout)
	os.Exit(code)
}
