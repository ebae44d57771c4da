// Command sluice is the gateway and its command line: `sluice run` is the daemon, the other
// commands send requests to it. See package cli for the commands and package daemon for how the
// parts are put together.
package main

import (
	"context"
	"os"

	"sluice.dev/sluice/gateway/cleanup"
	"sluice.dev/sluice/gateway/cli"
	"sluice.dev/sluice/gateway/daemon"
	"sluice.dev/sluice/gateway/explain"
	"sluice.dev/sluice/gateway/nodetunnel"
	"sluice.dev/sluice/gateway/reload"
	"sluice.dev/sluice/gateway/simulate"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/internal/logs"
)

func main() {
	app := cli.App{Run: daemon.Run, Reload: reload.Daemon, StartError: devices.StartError, Explain: explain.Offline,
		Simulate: simulate.Run, Cleanup: cleanup.Run,
		Node: cli.NodeCommands{Apply: nodetunnel.Apply, Run: nodetunnel.Run, Check: nodetunnel.Check,
			Remove: nodetunnel.Remove},
		In: os.Stdin, Out: os.Stdout, Err: logs.Stderr}
	code := app.Main(context.Background(), os.Args[1:])
	logs.Stderr.Flush(logs.FlushTimeout)
	os.Exit(code)
}
