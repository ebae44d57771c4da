// Package sdnotify tells systemd when a process serves, and that its loops make progress
// (sd_notify(3), systemd.service(5): Type=notify, WatchdogSec). Under another supervisor, without
// NOTIFY_SOCKET, it does nothing.
package sdnotify

import (
	"context"
	"log/slog"
	"net"
	"os"
	"time"
)

// Every is the interval of the messages. WatchdogSec must be several times as long.
const Every = 5 * time.Second

// readyEvery is how often Config.Ready is asked before it is true.
const readyEvery = 200 * time.Millisecond

// extend bounds how long systemd waits for the next message of a process that starts, in
// microseconds: TimeoutStartSec ends the start of one whose loops have stalled, and not of one that
// waits for an API server or a cable.
const extend = "EXTEND_TIMEOUT_USEC=30000000"

// Config configures Run.
type Config struct {
	Log *slog.Logger
	// Ready reports whether the process serves. Nil: it does.
	Ready func() bool
	// Dead lists the loops that ask for a restart of the process.
	Dead func() []string
	// Quiet: until this process serves, another one, from which it takes over, is the main process
	// of the service, and systemd refuses messages of this one. So it sends none before.
	Quiet bool
}

// Run sends messages to systemd until ctx is done: READY=1 once the process serves, and WATCHDOG=1
// every Every as long as no loop asks for a restart.
func Run(ctx context.Context, c Config) {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return
	}
	n := notifier{Config: c, socket: socket}
	n.step(time.Now())
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			n.step(now)
		}
	}
}

type notifier struct {
	Config
	socket string
	ready  bool
	last   time.Time // of the last message
	failed bool      // the last message was not sent
	dead   bool      // logged already
}

// step sends the messages that are due.
func (n *notifier) step(now time.Time) {
	ready := n.Ready == nil || n.Ready()
	if !ready && n.Quiet {
		return
	}
	begins := ready && !n.ready
	if begins && n.Quiet {
		n.ready, n.last = true, now // systemd learns meanwhile that this is the main process
		return
	}
	if !begins && now.Sub(n.last) < Every {
		return
	}
	dead := n.Dead()
	if len(dead) > 0 {
		if !n.dead {
			n.Log.Error("loops have stalled: systemd is to restart this process", "loops", dead)
		}
		n.dead = true
		return
	}
	n.dead, n.last = false, now
	n.ready = n.ready || ready
	text := "WATCHDOG=1"
	switch {
	case begins:
		text = "READY=1\n" + text
	case !n.ready:
		text = extend
	}
	n.send(text)
}

// send sends a message. It opens the socket each time, as systemd may have made another one.
func (n *notifier) send(text string) {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err == nil {
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second)) // it has no error for an open socket
		_, err = conn.Write([]byte(text))
		conn.Close()
	}
	if err != nil && !n.failed {
		n.Log.Warn("systemd gets no messages of this process", "socket", n.socket, "error", err)
	}
	n.failed = err != nil
}
