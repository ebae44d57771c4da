package nat

// strides are primes above 256: no number of 16 bits is divisible by two of them, so at least one
// of two neighbours is coprime to any count.
var strides = [16]uint16{
	257, 1031, 2053, 3079, 4099, 5119, 6151, 7177,
	8209, 9221, 10243, 12289, 14341, 16411, 20483, 32771,
}

// ChoosePorts returns the order in which to try the ports of a range for a new flow: first + (start
// + i*stride) mod count, for i from 0. rnd must be random. The start cannot be guessed (RFC 6056
// section 3.3). The stride is coprime to count, so the order contains every port, and it is random,
// so two flows with neighbouring starts do not try the same sequence of ports.
func ChoosePorts(rnd uint64, first, count uint16) (start, stride uint16) {
	if count <= 1 {
		return 0, 1
	}
	start = uint16((rnd & 0xffffffff) * uint64(count) >> 32)
	i := rnd >> 60
	stride = strides[i]
	if count%stride == 0 {
		stride = strides[(i+1)%uint64(len(strides))]
	}
	return start, stride % count
}
