// Command pod is what runs in the pods of nodes that need no more: it holds a pod's namespaces
// ("pause"), or serves what backends of test/bed/topo do ("serve NAME"), on TCP and UDP.
//
//	pod pause
//	pod serve [-port 8080] NAME
package main

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"sluice.dev/sluice/test/bed/topo"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pod:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	switch {
	case len(args) == 1 && args[0] == "pause":
		<-ended
		return nil
	case len(args) > 1 && args[0] == "serve":
		return serve(args[1:], ended)
	}
	return fmt.Errorf("usage: pod pause, or pod serve [-port PORT] NAME")
}

func serve(args []string, ended <-chan os.Signal) error {
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	port := flags.Uint("port", 8080, "TCP and UDP port")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 || *port == 0 || *port > 65535 {
		return fmt.Errorf("give the name to answer with, and a port from 1 to 65535")
	}
	// A pod may have less than all capabilities, and is in the namespace that it serves in.
	s, err := topo.ServeHere(flags.Arg(0), uint16(*port), netip.IPv6Unspecified())
	if err != nil {
		return err
	}
	<-ended
	return s.Close()
}
