package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/test/bed/stateless"
)

// statelessFlags are the flags that stateless and rfc2544 share, as text.
type statelessFlags struct {
	tx, rx, mac                               string
	protocol, receiver                        string
	sources, destinations, srcPorts, dstPorts string
	sizes                                     string
	vlans                                     []uint
	rxVLANs                                   int
	e                                         stateless.Experiment
}

func (s *statelessFlags) register(c *cobra.Command) {
	f, x := c.Flags(), &s.e.Config
	f.BoolVar(&s.e.Loopback, "loopback", false, "make a veth pair between two namespaces, and use that")
	f.StringVar(&s.tx, "tx", "", "INTERFACE[@NETNS] to send on")
	f.StringVar(&s.rx, "rx", "",
		"INTERFACE[@NETNS] to receive on; it gets an XDP program that takes only the packets sent")
	f.StringVar(&s.mac, "to-mac", "", "destination MAC address: the gateway's; without it, the receiver's")
	f.StringVar(&s.protocol, "protocol", "udp", "udp, syn or icmp")
	f.StringVar(&s.sources, "from", "10.1.0.1-10.1.0.250", "source addresses: ADDRESS, FIRST-LAST or PREFIX/BITS")
	f.StringVar(&s.destinations, "to", "10.2.0.1", "destination addresses")
	f.StringVar(&s.srcPorts, "from-ports", "1024-65535", "source ports: PORT or FIRST-LAST")
	f.StringVar(&s.dstPorts, "to-ports", "80", "destination ports (0 for icmp)")
	f.IntVar(&x.Traffic.Flows, "flows", 1000, "different flows")
	f.StringVar(&s.sizes, "sizes", "64",
		"frame sizes with their frame check sequence: BYTES, imix, or BYTES:WEIGHT,...")
	f.IntVar(&x.Traffic.Fragments, "fragments", 0, "send each datagram in this number of fragments")
	f.UintSliceVar(&s.vlans, "vlan", nil, "VLAN tags, the outer one first")
	f.IntVar(&s.rxVLANs, "rx-vlans", -1, "tags on arrival; -1 is as many as sent")
	f.StringVar(&s.receiver, "receiver", "full",
		"full: check every packet; count: only count them, at higher rates; timed: count, and latency")
	f.IntVar(&x.Tx.Queues, "queues", 1, "transmit queues, a thread for each")
	f.IntSliceVar(&x.Tx.CPUs, "tx-cpus", nil, "CPUs of the sending threads")
	f.IntSliceVar(&x.Rx.CPUs, "rx-cpus", nil, "CPUs of the receiving threads")
	f.IntVar(&x.Tx.Burst, "burst", 64, "maximum number of packets sent at once")
	f.BoolVar(&x.Tx.Spin, "spin", false, "do not sleep between bursts")
	f.BoolVar(&x.Tx.OwnNetwork, "i-own-this-network", false,
		"permit sending on interfaces in the machine's own namespace or with a default route")
	f.StringVar(&s.e.JSON, "json", "", "save the figures in this file, which sluice-bench report reads")
}

// experiment parses the flags.
func (s *statelessFlags) experiment() (*stateless.Experiment, error) {
	e := &s.e
	e.Out, e.Progress = os.Stdout, os.Stderr
	t := &e.Config.Traffic
	if e.Loopback == (s.tx != "" || s.rx != "") || (s.tx == "") != (s.rx == "") {
		return nil, errors.New("give --tx and --rx, or --loopback to try it without a network")
	}
	var errs [9]error
	t.Protocol, errs[0] = stateless.ParseProtocol(s.protocol)
	t.Sources, errs[1] = stateless.ParseAddresses(s.sources)
	t.Destinations, errs[2] = stateless.ParseAddresses(s.destinations)
	t.SourcePorts, errs[3] = stateless.ParsePorts(s.srcPorts)
	t.DestinationPorts, errs[4] = stateless.ParsePorts(s.dstPorts)
	t.Sizes, errs[5] = stateless.ParseSizes(s.sizes)
	e.Config.Rx.Method, errs[6] = stateless.ParseMethod(s.receiver)
	if s.mac != "" {
		t.DestinationMAC, errs[7] = net.ParseMAC(s.mac)
	}
	for _, v := range s.vlans {
		t.VLANs = append(t.VLANs, uint16(min(v, 1<<16-1)))
	}
	if s.rxVLANs >= 0 {
		e.Config.Rx.VLANs = &s.rxVLANs
	}
	if !e.Loopback {
		var errTx, errRx error
		e.Config.Tx.Port, errTx = stateless.ParsePort(s.tx)
		e.Config.Rx.Port, errRx = stateless.ParsePort(s.rx)
		errs[8] = errors.Join(errTx, errRx)
	}
	return e, errors.Join(errs[:]...)
}

func statelessCommand() *cobra.Command {
	var s statelessFlags
	var rate string
	command := &cobra.Command{
		Use:   "stateless",
		Short: "Send packets with time stamps, and check the packets that arrive",
		Long: "stateless sends UDP datagrams, TCP SYNs or echo requests of many flows at a rate, from --tx, and\n" +
			"reports on the packets at --rx: loss, order, duplicates, damage, flows that changed their\n" +
			"destination, latency. The system under test is between the two interfaces; with --loopback, a\n" +
			"wire. It needs Linux 6.12 and root.",
		Example: "  sluice-bench stateless --loopback --rate 100k\n" +
			"  sluice-bench stateless --tx eth0@client --rx eth0@server --to-mac 02:00:00:00:00:01 --to 192.0.2.1 " +
			"--flows 100000",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e, err := s.experiment()
			if err != nil {
				return err
			}
			if e.Load.Rate, err = stateless.ParseRate(rate); err != nil {
				return err
			}
			return e.Run(cmd.Context())
		},
	}
	s.register(command)
	f := command.Flags()
	f.StringVar(&rate, "rate", "max", "packets per second: 250000, 250k, 1.5M, or max")
	f.DurationVar(&s.e.Load.Duration, "duration", time.Second, fmt.Sprintf("how long to send, at most %v",
		stateless.MaxDuration))
	f.Uint64Var(&s.e.Load.Packets, "packets", 0, "how many packets to send, if that is less")
	f.IntVar(&s.e.Repeat, "repeat", 5, "trials")
	return command
}
