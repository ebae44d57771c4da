package devices

import (
	"fmt"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/host/nic/frames"
	"sluice.dev/sluice/host/nic/netdev"
)

// mayZeroCopy reports whether the size of frames must suit zero-copy. It must if zero-copy is
// required: opening the socket reports a driver without it.
func mayZeroCopy(f config.Interface, d Device) bool {
	return f.ZeroCopy == config.ZeroCopyRequire ||
		f.ZeroCopy != config.ZeroCopyNever && netdev.MayZeroCopy(netdev.XDPFeatures(d.Index))
}

// Check refuses a device that cannot work, before anything is changed. about is the subject of the
// refusal, in the form of a condition's name.
func Check(d Device, f config.Interface, chosen frames.Choice) (about string, err error) {
	if room := frames.LongRoom(chosen.Size); d.MTU > room {
		do := fmt.Sprintf("ip link set %s mtu %d", d.Name, room)
		if chosen.Size < frames.Large {
			do = fmt.Sprintf("set tuning.frameSize to auto or %d and restart, or: %s", frames.Large, do)
		}
		return "mtu",
			fmt.Errorf("interface %s has MTU %d, but %d frames of %d bytes, which are the most that a packet may "+
				"have, take at most %d, and larger packets are lost: %s",
				d.Name, d.MTU, fastpath.MaxBuffers, chosen.Size, room, do)
	}
	if frames.Long(d.MTU, chosen.Size) && f.ZeroCopy == config.ZeroCopyRequire {
		return "zero-copy",
			fmt.Errorf("interface %s: zeroCopy is require, but %s: set zeroCopy to auto, or: ip link set %s mtu %d",
				d.Name, frames.WhyLongIsCopy(d.MTU, chosen.Size), d.Name, frames.ZeroCopyMTU(d.Driver))
	}
	if d.generic != "" && f.Mode == config.ModeNative {
		return "mode",
			fmt.Errorf("interface %s: mode is native, but %s: set mode to auto or generic, or: ip link set %s mtu %d",
				d.Name, d.generic, d.Name, frames.NativeMTU(d.Driver))
	}
	if why := frames.WhyNotWhole(d.Driver, d.MTU, chosen.Size); why != "" && f.ZeroCopy == config.ZeroCopyRequire {
		if chosen.Size == frames.Large {
			why += ": " + frames.MakeWhole(d.Name, d.Driver, chosen.Size)
		}
		return "zero-copy", fmt.Errorf("interface %s: zeroCopy is require, but in zero-copy %s", d.Name, why)
	}
	if d.generic != "" && f.ZeroCopy == config.ZeroCopyRequire {
		return "zero-copy", fmt.Errorf("interface %s: zeroCopy is require, but %s: "+
			"set zeroCopy to auto, or: ip link set %s mtu %d",
			d.Name, d.generic, d.Name, frames.ZeroCopyMTU(d.Driver))
	}
	return "", nil
}
