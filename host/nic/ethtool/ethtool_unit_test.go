package ethtool

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAddressesAlone(t *testing.T) {
	const addresses, ports = HashSource | HashDestination, HashFirstPort | HashSecondPort
	for h, want := range map[HashFields]bool{
		addresses: true, HashSource: true, addresses | ports: false, addresses | HashFirstPort: false, ports: false,
		0: false,
	} {
		if h.AddressesAlone() != want {
			t.Errorf("%b: %v", h, !want)
		}
	}
}

func TestNoSuchDevice(t *testing.T) {
	for _, name := range []string{"nothere0", "nothere1"} {
		_, driver := Driver(name)
		_, channels := ReadChannels(name)
		_, features := Features(name)
		_, statistics := Statistics(name)
		_, hash := ReadFlowHash(name, UDP4)
		_, rings := ReadRings(name)
		for _, err := range []error{
			driver, channels, SetChannels(name, Channels{}), features, SetFeatures(name, nil), statistics, hash, rings,
		} {
			if !errors.Is(err, unix.ENODEV) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestGrowingStacks: wherever the stack grows on the way to the kernel, its answer arrives.
func TestGrowingStacks(t *testing.T) {
	for depth := range 200 {
		done := make(chan error)
		go func() { done <- deep(depth) }()
		if err := <-done; err != nil {
			t.Errorf("at depth %d: %v", depth, err)
		}
	}
}

// deep calls itself n times, then asks: a new goroutine's stack is small and grows at some depth.
//
//go:noinline
func deep(n int) error {
	if n > 0 {
		err := deep(n - 1)
		runtime.KeepAlive(&n)
		return err
	}
	names, err := stringSet("lo", setFeatures)
	if !slices.Contains(names, "loopback") {
		return errors.Join(errors.New("lo's features are lost"), err)
	}
	return nil
}
