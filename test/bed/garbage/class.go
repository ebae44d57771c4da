package garbage

// Class is a way in which packets lie.
type Class int

// The classes.
const (
	Lengths    Class = iota // every cut of every kind of packet; IP lengths below and beyond the frame
	Ethernet                // runts, tags, EtherTypes, receivers and senders
	IPv4Header              // version, header length, options, checksum, flags, TTL
	IPv6Chain               // extension headers in every order and depth, jumbograms
	Fragments               // tiny, overlapping, repeated, missing, beyond 65,535 bytes
	TCPHeader               // flags with data offsets, options, checksums, port 0
	UDPHeader               // lengths, checksums, port 0
	ICMP                    // types and codes; errors with every cut and kind of quote
	Addresses               // addresses that no sender has, or that are the gateway's
	Sequences               // handshakes, closes and resets in any order, from both sides
	Sizes                   // from the shortest frame to more than a UMEM frame holds
	NumClasses
)

// classes describes each class: its name, the families that have it, the number of frames that it
// enumerates per flow and direction, and the function that makes one.
var classes = [NumClasses]struct {
	name   string
	v4, v6 bool
	count  int
	make   func(*maker) []byte
}{
	Lengths:    {"lengths", true, true, kinds * 120 * 3, lengths},
	Ethernet:   {"Ethernet", true, true, 10 * 100, ethernet},
	IPv4Header: {"IPv4 header", true, false, 20_000, ipv4Header},
	IPv6Chain:  {"IPv6 chain", false, true, 30_000, ipv6Chain},
	Fragments:  {"fragments", true, true, 20_000, fragments},
	TCPHeader:  {"TCP", true, true, 512 * 16 * 3, tcpHeader},
	UDPHeader:  {"UDP", true, true, 16 * 4 * 3 * 26, udpHeader},
	ICMP:       {"ICMP", true, true, 40_000, icmp},
	Addresses:  {"addresses", true, true, 10_000, addresses},
	Sequences:  {"sequences", true, true, 1_000_000 * walkSteps, sequences},
	Sizes:      {"sizes", true, true, 4_000, sizes},
}

// String returns the name of the class.
func (c Class) String() string { return classes[c].name }

// Count is how many frames Source.Frame has of the class, for each direction of a flow.
func (c Class) Count() int { return classes[c].count }

// V6 returns the family to make a packet of: the one asked for, if the class has it.
func (c Class) V6(want bool) bool {
	if want {
		return classes[c].v6
	}
	return !classes[c].v4
}

// Protocol numbers (IANA).
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
	protoSCTP   = 132
)
