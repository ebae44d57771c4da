package nat

import "sluice.dev/sluice/nat/header"

// TranslatePlain does what DecrementTTL and Translate do to packets that are plain (header.Plain), and gives them the MAC addresses of their hops.
// leaving is as long as frames, which Inspect has taken, all of it. Meanwhile it asks for the second lines of other frames (header.Memory.FetchEnds),
// of at most as many.
func TranslatePlain(m *header.Memory, frames []header.Frame, leaving []header.Leaving, ends []header.Frame) {
	translatePlain(m, frames, leaving[:len(frames)], ends)
}

// checksumBits are the bits of both checksums' offsets, 16 and 6. Without the bits that a protocol number has of them they are the offset of that
// protocol: 22-6 is TCP's and 22-16 is UDP's, as the other bit of 17 is none of them. No branch depends on which, as they come mixed.
const (
	checksumBits = tcpChecksumOffset | udpChecksumOffset
	_            = -uint(checksumBits - header.ProtoTCP&checksumBits ^ tcpChecksumOffset)
	_            = -uint(checksumBits - header.ProtoUDP&checksumBits ^ udpChecksumOffset)
)
