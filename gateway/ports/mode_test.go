package ports

import (
	"strings"
	"testing"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/host/nic/devices"
)

func TestSocketMode(t *testing.T) {
	igb, virtio := devices.Device{Name: nic, Driver: "igb", MTU: 1500}, devices.Device{Name: nic, Driver: "virtio_net",
		MTU: 1500}
	for _, tc := range []struct {
		name      string
		p         *port
		dev       devices.Device
		frameSize int
		mode      xsk.Mode
		why       string
	}{
		{"auto", &port{config: config.Interface{ZeroCopy: config.ZeroCopyAuto}}, virtio, 2048, xsk.Auto, ""},
		{"auto, large frames", &port{config: config.Interface{ZeroCopy: config.ZeroCopyAuto}}, igb, 4096, xsk.Auto, ""},
		{"auto, frames too small for zero-copy", &port{config: config.Interface{ZeroCopy: config.ZeroCopyAuto}}, igb,
			2048, xsk.Copy,
			"in zero-copy driver igb delivers packets of up to 998 bytes whole into frames of 2048 bytes, and the " +
				"MTU is 1500: set tuning.frameSize"},
		{"auto, small frames without zero-copy",
			&port{without: true, config: config.Interface{ZeroCopy: config.ZeroCopyAuto}}, igb, 2048, xsk.Auto, ""},
		{"never", &port{config: config.Interface{ZeroCopy: config.ZeroCopyNever}}, virtio, 2048, xsk.Copy,
			"zeroCopy is never in the configuration"},
		{"required", &port{config: config.Interface{ZeroCopy: config.ZeroCopyRequire}, pieces: "pieces"}, virtio, 2048,
			xsk.ZeroCopy, ""},
		{"pieces were seen", &port{config: config.Interface{ZeroCopy: config.ZeroCopyAuto}, pieces: "pieces"}, virtio,
			2048, xsk.Copy, "pieces"},
		{"generic mode", &port{config: config.Interface{Mode: config.ModeGeneric, ZeroCopy: config.ZeroCopyAuto}},
			virtio, 2048, xsk.Copy,
			"generic mode has no zero-copy"},
		{"host link", &port{host: true, config: config.Interface{ZeroCopy: config.ZeroCopyNever}}, virtio, 2048,
			xsk.Copy, "a veth pair has no zero-copy"},
	} {
		mode, why := tc.p.modeOf(tc.dev, tc.frameSize)
		if mode != tc.mode || !strings.HasPrefix(why, tc.why) || (tc.why == "" && why != "") {
			t.Errorf("%s: %v, because %q; want %v, because %q", tc.name, mode, why, tc.mode, tc.why)
		}
	}
}
