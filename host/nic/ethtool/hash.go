package ethtool

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Flow is a kind of packets that a NIC hashes by fields of its own choice (the flow types of
// include/uapi/linux/ethtool.h).
type Flow uint32

// The kinds.
const (
	TCP4  Flow = 0x01 // TCP_V4_FLOW
	UDP4  Flow = 0x02 // UDP_V4_FLOW
	SCTP4 Flow = 0x03 // SCTP_V4_FLOW
	TCP6  Flow = 0x05 // TCP_V6_FLOW
	UDP6  Flow = 0x06 // UDP_V6_FLOW
	SCTP6 Flow = 0x07 // SCTP_V6_FLOW
)

// String is the kind as `ethtool -n DEV rx-flow-hash` takes it.
func (f Flow) String() string {
	switch f {
	case TCP4:
		return "tcp4"
	case UDP4:
		return "udp4"
	case SCTP4:
		return "sctp4"
	case TCP6:
		return "tcp6"
	case UDP6:
		return "udp6"
	case SCTP6:
		return "sctp6"
	}
	return fmt.Sprintf("flow type %#x", uint32(f))
}

// HashFields are the fields of a packet that choose its receive queue: RXH_ bits.
type HashFields uint64

// The fields that matter here.
const (
	HashSource      HashFields = 1 << 4 // RXH_IP_SRC
	HashDestination HashFields = 1 << 5 // RXH_IP_DST
	HashFirstPort   HashFields = 1 << 6 // RXH_L4_B_0_1, the source port
	HashSecondPort  HashFields = 1 << 7 // RXH_L4_B_2_3, the destination port
)

// AddressesAlone reports whether all packets between two addresses come to one queue, regardless of
// their ports. It is false where nothing is hashed: such a device chooses queues in another way.
func (h HashFields) AddressesAlone() bool {
	return h&(HashSource|HashDestination) != 0 && h&(HashFirstPort|HashSecondPort) == 0
}

// rxnfcBytes is the size of struct ethtool_rxnfc, of which this request uses only the first three
// fields: command, flow type, and 64 bits of fields.
const rxnfcBytes = 256

// ReadFlowHash reads the fields by which packets of a kind are hashed (ETHTOOL_GRXFH); the error is
// unix.EOPNOTSUPP where the driver does not report them.
func ReadFlowHash(dev string, f Flow) (HashFields, error) {
	b := request(unix.ETHTOOL_GRXFH, uint32(f))
	b = append(b, make([]byte, rxnfcBytes-len(b))...)
	if _, err := call(dev, b); err != nil {
		return 0, fmt.Errorf("%s: read the fields that %v is hashed by: %w", dev, f, err)
	}
	return HashFields(binary.NativeEndian.Uint64(b[8:])), nil
}
