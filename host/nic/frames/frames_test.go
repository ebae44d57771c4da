package frames

import (
	"strings"
	"testing"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/host/nic/netdev"
)

func TestChoose(t *testing.T) {
	for _, tc := range []struct {
		name       string
		configured config.FrameSize
		list       []Interface
		size       int
		reason     string
	}{
		{"nothing special", 0, []Interface{{"left", "virtio_net", 1500, true}, {"right", "veth", 1500, true}}, Small,
			"every MTU is at most 1770"},
		{"igb in zero-copy", 0, []Interface{{"left", "veth", 1500, true}, {"right", "igb", 1500, true}}, Large,
			"driver igb of right delivers packets of up to 998 bytes whole into frames of 2048 bytes in zero-copy, " +
				"and the MTU is 1500"},
		{"ixgbe in zero-copy", 0, []Interface{{"right", "ixgbe", 1500, true}}, Large, "driver ixgbe of right"},
		{"igb never in zero-copy", 0, []Interface{{"right", "igb", 1500, false}}, Small, "every MTU"},
		{"igb of a small MTU", 0, []Interface{{"right", "igb", 998, true}}, Small, "every MTU"},
		{"igb, one more", 0, []Interface{{"right", "igb", 999, true}}, Large, "998"},
		{"largest that fits", 0, []Interface{{"left", "mlx5_core", 1766, true}}, Small, "every MTU"},
		{"largest that fits in copy mode", 0, []Interface{{"left", "mlx5_core", 1770, false}}, Small, "every MTU"},
		{"fits in copy mode alone", 0, []Interface{{"left", "mlx5_core", 1767, true}}, Large, "up to 1766 bytes"},
		{"MTU too large", 0, []Interface{{"left", "virtio_net", 1771, false}}, Large,
			"left has MTU 1771, and frames of 2048 bytes take 1770"},
		{"configured", 2048, []Interface{{"left", "igb", 1500, true}}, Small, "tuning.frameSize says so"},
		{"configured large", 4096, nil, Large, "tuning.frameSize says so"},
	} {
		got := Choose(tc.configured, tc.list)
		if got.Size != tc.size || !strings.Contains(got.Reason, tc.reason) {
			t.Errorf("%s: %d, because %q; want %d, because %q", tc.name, got.Size, got.Reason, tc.size, tc.reason)
		}
	}
}

func TestLong(t *testing.T) {
	for _, tc := range []struct {
		mtu, size int
		long      bool
		why       string
	}{
		{1770, Small, false, ""}, {1771, Small, true, "takes 2 frames of 2048"},
		{9000, Small, true, "takes 6 frames of 2048"},
		{3818, Large, false, ""}, {3819, Large, true, "takes 2 frames of 4096"},
		{9000, Large, true, "takes 3 frames of 4096"},
	} {
		if got := Long(tc.mtu, tc.size); got != tc.long || got && !strings.Contains(WhyLongIsCopy(tc.mtu, tc.size),
			tc.why) {
			t.Errorf("MTU %d, frames of %d: %v, %s", tc.mtu, tc.size, got, WhyLongIsCopy(tc.mtu, tc.size))
		}
	}
	if a, b := LongRoom(Small), LongRoom(Large); a != 17*1792-22 || b != 17*3840-22 {
		t.Errorf("at most %d and %d", a, b)
	}
}

func TestWhyGeneric(t *testing.T) {
	const native = netdev.Basic | netdev.Redirect
	for _, tc := range []struct {
		name     string
		features uint64
		known    bool
		mtu      int
		generic  bool
	}{
		{"igb", native, true, 9000, true},
		{"igb of a small MTU", native, true, 3818, false},
		{"virtio-net with mergeable buffers", native | netdev.RxSG, true, 9000, false},
		{"no native mode at all", 0, true, 9000, false},
		{"a kernel that does not say", 0, false, 9000, false},
	} {
		if got := WhyGeneric("some", tc.features, tc.known, tc.mtu); (got != "") != tc.generic ||
			got != "" && !strings.Contains(got, "driver some gives no packets") {
			t.Errorf("%s: %q", tc.name, got)
		}
	}
}

func TestNativeMTU(t *testing.T) {
	const native = netdev.Basic | netdev.Redirect
	for _, tc := range []struct {
		driver   string
		features uint64
		known    bool
		mtu      int
		want     string // empty: native mode
	}{
		{"igc", native, true, 1500, ""},
		{"igc", native, true, 1501,
			"driver igc refuses a native XDP program at an MTU of more than 1500, and it is 1501"},
		{"igb", native, true, 3046, ""},
		{"igb", native, true, 3047, "more than 3046, and it is 3047"},
		{"igb", native, true, 9000, "more than 3046, and it is 9000"},
		{"ixgbe", native, true, 3050, ""},
		{"ixgbe", native, true, 3051, "more than 3050, and it is 3051"},
		{"igb", 0, false, 3047, "more than 3046"}, // which an old kernel's driver refuses, too
		{"igb", 0, true, 3047, ""},
		{"virtio_net", native, true, 3818, ""},
	} {
		got := WhyGeneric(tc.driver, tc.features, tc.known, tc.mtu)
		if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s, MTU %d, features %x: %q, want %q", tc.driver, tc.mtu, tc.features, got, tc.want)
		}
	}
}

func TestWhyNotWhole(t *testing.T) {
	for _, tc := range []struct {
		driver    string
		mtu, size int
		want      string // empty: nothing is wrong
	}{
		{"igb", 1500, Small,
			"up to 998 bytes whole into frames of 2048 bytes, and the MTU is 1500: set tuning.frameSize to auto or " +
				"4096"},
		{"igb", 1500, Large, ""},
		{"igb", 3046, Large, ""},
		{"igb", 3047, Large, "up to 3046 bytes whole into frames of 4096 bytes, and the MTU is 3047"},
		{"virtio_net", 1500, Small, ""},
		{"ixgbe", 1500, Small,
			"driver ixgbe delivers packets of up to 998 bytes whole into frames of 2048 bytes, and the MTU is 1500: " +
				"set tuning.frameSize to auto or 4096"},
		{"ixgbe", 998, Small, ""},
		{"ixgbe", 1500, Large, ""},
		{"igb", 9000, Small, ""}, // copy mode, which other cases test
	} {
		got := WhyNotWhole(tc.driver, tc.mtu, tc.size)
		if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s, MTU %d, frames of %d: %q, want %q", tc.driver, tc.mtu, tc.size, got, tc.want)
		}
	}
}
