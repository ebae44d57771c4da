package flowtable_test

import (
	"fmt"
	"net/netip"
	"time"

	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

func tuple(src, dst string) header.Tuple {
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	return header.Tuple{
		Src: header.AddrFrom(s.Addr()), SrcPort: s.Port(),
		Dst: header.AddrFrom(d.Addr()), DstPort: d.Port(),
		Proto: header.ProtoTCP,
	}
}

func text(t *header.Tuple) string {
	src, dst := netip.AddrFrom16(t.Src).Unmap(), netip.AddrFrom16(t.Dst).Unmap()
	return fmt.Sprint(netip.AddrPortFrom(src, t.SrcPort), " to ", netip.AddrPortFrom(dst, t.DstPort))
}

// boot stands for the time since the machine started: the table has no clock of its own.
const boot = flowtable.Time(time.Hour)

// A connection through the gateway, as a worker sees it: a flow for the first packet, the same flow
// for the reply, and the tuples with which both leave.
func Example() {
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 1000, Timeouts: flowtable.DefaultTimeouts()})
	if err != nil {
		fmt.Println(err)
		return
	}
	h, err := table.Register() // each worker has a handle of its own
	if err != nil {
		fmt.Println(err)
		return
	}
	defer h.Close()
	h.Enter(boot) // once per batch: refs stay valid until the next Enter

	// A SYN arrives, and there is no flow. The worker has selected the backend, and the table finds
	// the port.
	syn := tuple("198.51.100.7:40000", "203.0.113.10:80")
	if r, _ := h.Lookup(h.Hash(&syn), &syn, boot); r != 0 {
		fmt.Println("a flow, before there is one")
	}
	r, status := h.Create(boot, &flowtable.NewFlow{
		Client:  syn,
		Backend: header.AddrFrom4([4]byte{10, 0, 1, 12}), BackendPort: 8080,
		Source: header.AddrFrom4([4]byte{10, 0, 1, 2}),
		Ports:  flowtable.Ports{First: 20000, Count: 1000, Start: 7, Stride: 3},
	})
	fmt.Println(status)
	h.Observe(r, flowtable.ClientSide, flowtable.Segment{Flags: header.TCPSYN, Seq: 1000}, boot)
	var leaves header.Tuple
	h.Outgoing(r, flowtable.ClientSide, &leaves)
	fmt.Println("SYN leaves as", text(&leaves))

	// The reply has the other key of the same record.
	reply := leaves.Reverse()
	r, side := h.Lookup(h.Hash(&reply), &reply, boot)
	h.Observe(r, side, flowtable.Segment{Flags: header.TCPSYN | header.TCPACK, Seq: 5000, Ack: 1001}, boot)
	h.Outgoing(r, side, &leaves)
	fmt.Println("SYN-ACK leaves as", text(&leaves))

	var i flowtable.Info
	h.Inspect(r, boot, &i)
	fmt.Println("state", i.State)
	// Output:
	// created
	// SYN leaves as 10.0.1.2:20007 to 10.0.1.12:8080
	// SYN-ACK leaves as 203.0.113.10:80 to 198.51.100.7:40000
	// state SYN_RECV
}

// A source port is taken for one backend, not for all: two flows to different backends share one.
func ExampleHandle_Create() {
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 1000, Timeouts: flowtable.DefaultTimeouts()})
	if err != nil {
		fmt.Println(err)
		return
	}
	h, err := table.Register()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer h.Close()
	h.Enter(boot)

	onePort := flowtable.Ports{First: 20000, Count: 1, Stride: 1}
	for i, backend := range []byte{12, 13, 13} {
		n := flowtable.NewFlow{
			Client:  tuple(fmt.Sprintf("198.51.100.7:%d", 40000+i), "203.0.113.10:80"),
			Backend: header.AddrFrom4([4]byte{10, 0, 1, backend}), BackendPort: 8080,
			Source: header.AddrFrom4([4]byte{10, 0, 1, 2}), Ports: onePort,
		}
		r, status := h.Create(boot, &n)
		if r == 0 {
			fmt.Println(status)
			continue
		}
		var leaves header.Tuple
		h.Outgoing(r, flowtable.ClientSide, &leaves)
		fmt.Println(text(&leaves))
	}
	// Output:
	// 10.0.1.2:20000 to 10.0.1.12:8080
	// 10.0.1.2:20000 to 10.0.1.13:8080
	// ports_exhausted
}

// A flow without packets expires: lookups no longer find it, and a sweep frees its record.
func ExampleHandle_Sweep() {
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 1000, Timeouts: flowtable.DefaultTimeouts()})
	if err != nil {
		fmt.Println(err)
		return
	}
	h, err := table.Register()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer h.Close()
	h.Enter(boot)

	syn := tuple("198.51.100.7:40000", "203.0.113.10:80")
	h.Create(boot, &flowtable.NewFlow{
		Client:  syn,
		Backend: header.AddrFrom4([4]byte{10, 0, 1, 12}), BackendPort: 8080,
		Source: header.AddrFrom4([4]byte{10, 0, 1, 2}), SourcePort: 20000,
	})
	fmt.Println("live:", table.Counts().Live[0])

	later := boot + flowtable.Time(10*time.Minute) // the SYN got no answer
	h.Enter(later)
	r, _ := h.Lookup(h.Hash(&syn), &syn, later)
	fmt.Println("found:", r != 0)
	_, expired := h.Sweep(later, 10_000)
	fmt.Println("swept:", expired, "live:", table.Counts().Live[0])
	// Output:
	// live: 1
	// found: false
	// swept: 1 live: 0
}
