// Package ethtool reads the names, features, queues and statistics of drivers, and sets features
// and queues, by SIOCETHTOOL (include/uapi/linux/ethtool.h). Devices are named as in the calling
// thread's network namespace.
//
// Not by github.com/safchain/ethtool: in v0.7.0, its last release, a pointer to a variable on the
// stack becomes a number one call before the system call. If that call makes the stack grow, the
// kernel writes into memory that belongs to something else by then, and the caller reads zeros:
// sometimes a device seems to have no features or queues (fixed there in pull request 139). Here a
// pointer stays a pointer until the system call.
package ethtool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// String sets (enum ethtool_stringset).
const (
	setStatistics = 1 // ETH_SS_STATS
	setFeatures   = 4 // ETH_SS_FEATURES
)

// unsupported in what ETHTOOL_SFEATURES returns: a wanted bit is not the driver's to change
// (ETHTOOL_F_UNSUPPORTED).
const unsupported = 1 << 0

// stringBytes is the room of a name in a string set (ETH_GSTRING_LEN).
const stringBytes = 32

// Channels has a device's numbers of queues (struct ethtool_channels): the greatest possible and
// the present ones.
type Channels struct {
	MaxRx, MaxTx, MaxOther, MaxCombined uint32
	Rx, Tx, Other, Combined             uint32
}

// Queues returns the numbers of queues that receive and that transmit, at least one each.
func (c Channels) Queues() (rx, tx int) {
	return int(max(1, c.Rx+c.Combined)), int(max(1, c.Tx+c.Combined))
}

// Pairs counts the queues that do both, at least one.
func (c Channels) Pairs() int { return int(max(1, c.Combined+min(c.Rx, c.Tx))) }

// Driver is the name of the device's driver.
func Driver(dev string) (string, error) {
	fd, err := socket()
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, dev)
	if err != nil {
		return "", fmt.Errorf("%s: read the driver: %w", dev, err)
	}
	return unix.ByteSliceToString(info.Driver[:]), nil
}

// ReadChannels reads the numbers of queues; the error is unix.EOPNOTSUPP where the driver does not
// report them.
func ReadChannels(dev string) (Channels, error) {
	return read[Channels](dev, unix.ETHTOOL_GCHANNELS, "queues")
}

// read returns the answer to a command that fills a structure.
func read[T any](dev string, command uint32, what string) (answer T, err error) {
	b := append(request(command), make([]byte, binary.Size(answer))...)
	if _, err := call(dev, b); err != nil {
		return answer, fmt.Errorf("%s: read %s: %w", dev, what, err)
	}
	_, err = binary.Decode(b[4:], binary.NativeEndian, &answer)
	return answer, err
}

// SetChannels sets the numbers of queues; the kernel ignores the Max fields.
func SetChannels(dev string, c Channels) error {
	b, err := binary.Append(request(unix.ETHTOOL_SCHANNELS), binary.NativeEndian, c)
	if err != nil {
		return err
	}
	if _, err := call(dev, b); err != nil {
		return fmt.Errorf("%s: set queues: %w", dev, err)
	}
	return nil
}

// Features returns for each feature (net/ethtool/common.c, netdev_features_strings) whether it is
// on.
func Features(dev string) (map[string]bool, error) {
	names, err := stringSet(dev, setFeatures)
	if err != nil {
		return nil, fmt.Errorf("%s: names of features: %w", dev, err)
	}
	// Per 32 features: available, requested, active, never changed (struct
	// ethtool_get_features_block).
	words := (len(names) + 31) / 32
	b := request(unix.ETHTOOL_GFEATURES, uint32(words))
	b = append(b, make([]byte, words*16)...)
	if _, err := call(dev, b); err != nil {
		return nil, fmt.Errorf("%s: read features: %w", dev, err)
	}
	on := make(map[string]bool, len(names))
	for i, name := range names {
		active := binary.NativeEndian.Uint32(b[8+i/32*16+8:])
		on[name] = active>>(i%32)&1 != 0
	}
	delete(on, "") // bits without a feature
	return on, nil
}

// SetFeatures switches the named features on or off and leaves the others alone. A name that the
// kernel does not know is an error and nothing is changed; so is, after the change of the others, a
// feature that the driver does not allow to change.
func SetFeatures(dev string, want map[string]bool) error {
	names, err := stringSet(dev, setFeatures)
	if err != nil {
		return fmt.Errorf("%s: names of features: %w", dev, err)
	}
	// Per 32 features: which to set, and to what (struct ethtool_set_features_block).
	words := (len(names) + 31) / 32
	b := request(unix.ETHTOOL_SFEATURES, uint32(words))
	b = append(b, make([]byte, words*8)...)
	known := 0
	for i, name := range names {
		on, ok := want[name]
		if !ok || name == "" {
			continue
		}
		known++
		block := b[8+i/32*8:]
		binary.NativeEndian.PutUint32(block, binary.NativeEndian.Uint32(block)|1<<(i%32))
		if on {
			binary.NativeEndian.PutUint32(block[4:], binary.NativeEndian.Uint32(block[4:])|1<<(i%32))
		}
	}
	if known != len(want) {
		return fmt.Errorf("%s: set features: this kernel knows %d of the %d in %v", dev, known, len(want), want)
	}
	flags, err := call(dev, b)
	if err == nil && flags&unsupported != 0 {
		err = unix.EOPNOTSUPP
	}
	if err != nil {
		return fmt.Errorf("%s: set features %v: %w", dev, want, err)
	}
	return nil
}

// Statistics are the driver's own counters by name.
func Statistics(dev string) (map[string]uint64, error) {
	names, err := stringSet(dev, setStatistics)
	if err != nil {
		return nil, fmt.Errorf("%s: names of statistics: %w", dev, err)
	}
	values := make(map[string]uint64, len(names))
	if len(names) == 0 {
		return values, nil
	}
	b := request(unix.ETHTOOL_GSTATS, uint32(len(names)))
	b = append(b, make([]byte, (len(names)+spare)*8)...)
	_, err = call(dev, b)
	if err == nil && int(binary.NativeEndian.Uint32(b[4:])) != len(names) {
		err = errChanged
	}
	if err != nil {
		return nil, fmt.Errorf("%s: read statistics: %w", dev, err)
	}
	for i, name := range names {
		values[name] = binary.NativeEndian.Uint64(b[8+i*8:])
	}
	return values, nil
}

// stringSet reads the names of a set, in the order of its bits or values.
func stringSet(dev string, set uint32) ([]string, error) {
	// struct ethtool_sset_info: reserved, then a mask of 64 bits, then a size per bit.
	b := request(unix.ETHTOOL_GSSET_INFO, 0)
	b = binary.NativeEndian.AppendUint64(b, 1<<set)
	b = append(b, 0, 0, 0, 0)
	if _, err := call(dev, b); err != nil {
		return nil, err
	}
	n := int(binary.NativeEndian.Uint32(b[16:]))
	// struct ethtool_gstrings: the set and its size, then the names.
	b = request(unix.ETHTOOL_GSTRINGS, set, uint32(n))
	b = append(b, make([]byte, (n+spare)*stringBytes)...)
	if _, err := call(dev, b); err != nil {
		return nil, err
	}
	if int(binary.NativeEndian.Uint32(b[8:])) != n {
		return nil, errChanged
	}
	names := make([]string, n)
	for i := range names {
		name, _, _ := bytes.Cut(b[12+i*stringBytes:12+(i+1)*stringBytes], []byte{0})
		names[i] = string(name)
	}
	return names, nil
}

// request returns a request, which begins with the command.
func request(words ...uint32) []byte {
	b := make([]byte, 0, 64)
	for _, w := range words {
		b = binary.NativeEndian.AppendUint32(b, w)
	}
	return b
}

// errChanged: a device's queues, and with them its statistics, changed between two requests.
var errChanged = errors.New("they changed meanwhile: try again")

// spare is room for strings and statistics that were added after the count, for a device that gets
// more queues meanwhile: kernels before 6.19 write all of them without regard to the room
// (net/ethtool/ioctl.c, ethtool_get_strings and ethtool_get_stats); later kernels, and those with
// the fix, return 0.
const spare = 1024

func socket() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open a socket for ethtool: %w", err)
	}
	return fd, nil
}

// ifreq is struct ifreq (include/uapi/linux/if.h): 16 bytes of name, and a union of 24.
type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [24 - unsafe.Sizeof(uintptr(0))]byte
}

// call hands b to the kernel, which writes its answer over it.
func call(dev string, b []byte) (answer uintptr, err error) {
	if len(dev) >= unix.IFNAMSIZ {
		return 0, unix.ENODEV
	}
	fd, err := socket()
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	r := ifreq{data: unsafe.Pointer(unsafe.SliceData(b))}
	copy(r.name[:], dev)
	answer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r)))
	if errno != 0 {
		return 0, errno
	}
	return answer, nil
}
