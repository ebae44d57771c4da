// Command l2fwd forwards packets between two interfaces over asavie/xdp: the baseline that
// `sluice-bench compare` starts beside the other systems. It is a program of its own because the
// library panics.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"sluice.dev/sluice/bench/asavie"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "l2fwd:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	var c asavie.ForwardConfig
	flag.StringVar(&c.In, "in", "", "interface on which packets arrive")
	flag.StringVar(&c.Out, "out", "", "interface on which packets leave")
	nextIn := flag.String("next-in", "", "MAC address of the next hop behind --in")
	nextOut := flag.String("next-out", "", "MAC address of the next hop behind --out")
	flag.IntVar(&c.Queues, "queues", 1, "queues of both, one worker each")
	cpus := flag.String("cpus", "", "CPUs to pin the workers to, 0,1")
	flag.BoolVar(&c.Drain, "drain", false,
		"repeat the sending system call until the ring is empty; the library calls once")
	flag.Parse()
	if c.InNext, err = net.ParseMAC(*nextIn); err != nil {
		return fmt.Errorf("--next-in: %w", err)
	}
	if c.OutNext, err = net.ParseMAC(*nextOut); err != nil {
		return fmt.Errorf("--next-out: %w", err)
	}
	for word := range strings.SplitSeq(*cpus, ",") {
		if word == "" {
			continue
		}
		cpu, err := strconv.Atoi(word)
		if err != nil {
			return fmt.Errorf("--cpus: %w", err)
		}
		c.CPUs = append(c.CPUs, cpu)
	}
	return asavie.Forward(ctx, c)
}
