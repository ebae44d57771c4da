package stateless

import (
	"net"
	"net/netip"
	"time"
)

// Config is a sender and a receiver: what Open opens.
type Config struct {
	Traffic Traffic
	Tx      Tx
	Rx      Rx
}

// Namespace calls f on a thread that is in a network namespace; topo.Host is one.
type Namespace interface {
	Run(f func() error) error
}

// Port is an interface in a network namespace.
type Port struct {
	Interface string
	Namespace Namespace // nil is the namespace of the process
}

// Tx configures how frames are sent.
type Tx struct {
	Port Port
	// Queues is how many transmit queues are used, one thread for each; 1 if zero. The
	// flows are divided among them.
	Queues int
	// CPUs are the processors of the threads, in turn; nil leaves them to the scheduler.
	CPUs []int
	// Burst is how many packets are sent at once: 64 if zero. A limited rate is sent in
	// smaller bursts, as many packets as are due in Together, so that packets do not wait
	// for each other. They share one time stamp.
	Burst int
	// Together is 50 us if zero. The longer, the fewer times a thread wakes up, which in a virtual
	// machine may cost more than to send.
	Together time.Duration
	// Spin keeps the processor between bursts instead of sleeping: exact to the
	// microsecond, for a whole CPU.
	Spin bool
	// OwnNetwork permits sending in the machine's own namespace and on an interface
	// with a default route (ErrNotYours). The maker of the namespace may set it.
	OwnNetwork bool
}

// Rx configures how packets are received. Nothing else in that namespace gets them.
type Rx struct {
	Port   Port
	Method Method
	// Queues is how many receive queues there are, all by default.
	Queues int
	CPUs   []int // as Tx.CPUs
	// Keep is of how many packets of a trial Timed keeps when each was sent and came:
	// Received.Arrivals. The first of a trial are kept.
	Keep int
	// VLANs is how many tags a packet has on arrival; Traffic's if nil.
	VLANs *int
	// Settle is for how long nothing must arrive until a trial is over; 100 ms if zero. A
	// trial ends ten times that after the last packet was sent, in any case.
	Settle time.Duration
}

// Method is how packets are received.
type Method uint8

const (
	// Count counts packets, bytes and flows in an XDP program and drops them: the
	// cheapest way, for highest rates. It knows neither order nor time.
	Count Method = iota
	// Full receives through AF_XDP, one thread per queue, and judges every packet.
	Full
	// Timed is Count and latencies, to 3 %. Where the system under test has the processors that
	// the receiver's threads would run on, this leaves them alone.
	Timed
)

// String returns the method's name, as the command line spells it.
func (m Method) String() string { return [...]string{"count", "full", "timed"}[m] }

// Protocol is the protocol of a packet above IP.
type Protocol uint8

const (
	UDP      Protocol = iota
	TCPSYN            // opens a connection per flow that is never used; again in each round
	ICMPEcho          // requests; the identifier is the flow's source port
)

// String returns the protocol's name, as the command line spells it.
func (p Protocol) String() string { return [...]string{"udp", "syn", "icmp"}[p] }

// Traffic describes the packets. The zero value is not useful: addresses
// and the destination's MAC address must be given.
type Traffic struct {
	Protocol Protocol
	// Sources and Destinations are of one family. Flows take every combination of source
	// address, source port, destination address and destination port before one repeats:
	// source addresses vary fastest, then source ports, destination addresses and
	// destination ports.
	Sources, Destinations         Addresses
	SourcePorts, DestinationPorts Ports
	// Flows is how many flows there are, 1 if zero; never more than combinations. Each
	// round sends one packet of each, in an order that changes from round to round.
	Flows int
	// Sizes are frame sizes and how often each comes; 64 bytes if nil. See IMIX.
	Sizes []Size
	// Fragments is into how many fragments each datagram is cut: 0 or 1 for none, at
	// most 8. Each is a frame of the size that Sizes says. UDP and ICMPEcho only.
	Fragments int
	// VLANs are the tags in the frame, outermost first (IEEE 802.1Q; the outer of two is
	// 802.1ad). At most two.
	VLANs []uint16
	// SourceMAC is the interface's own if nil.
	SourceMAC, DestinationMAC net.HardwareAddr
	// Run is in every packet, so that the receiver recognises packets of another run; 1 if zero.
	Run uint16
}

// Addresses are Count addresses from First on; one if Count is zero.
type Addresses struct {
	First netip.Addr
	Count int
}

// Ports are all ports from First to Last; First alone if Last is zero.
type Ports struct{ First, Last uint16 }

// Size is a frame's size and its share.
type Size struct {
	// Bytes is what RFC 2544 (section 9.1) counts: from the destination's MAC address
	// to the end of the frame check sequence, which has 4 bytes and is never in memory. A size
	// that does not hold headers and tag is raised until it does.
	Bytes  int
	Weight int // shares of the sum of weights
}

// IMIX is the simple Internet mix: 7 of 64, 4 of 594, 1 of 1518 bytes.
func IMIX() []Size { return []Size{{64, 7}, {594, 4}, {1518, 1}} }

// Load is what one trial sends. It is always bounded.
type Load struct {
	Rate float64 // packets per second, all queues together; 0 is as fast as possible
	// Duration and Packets bound the trial: it ends at the first of the two. One of them must be
	// given, and Duration is never above MaxDuration.
	Duration time.Duration
	Packets  uint64
}

// MaxDuration bounds a trial.
const MaxDuration = time.Hour
