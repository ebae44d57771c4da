package nodetunnel

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/gateway/doctor"
)

// checkInterval is the time between two checks of Run. releaseTime is how long an ending Run waits
// for another Run to take the tunnel over.
const (
	checkInterval = 5 * time.Second
	releaseTime   = checkInterval + 2*time.Second
)

// Run applies the tunnel, corrects it while ctx lasts, and then removes it. It returns the error of
// the first attempt, and reports each change and each new later error in a line. A Run that starts
// while another one runs takes the tunnel over: the other one then corrects and removes nothing,
// unless the tunnel disappears or its owner ends. So the tunnel stays during an update or a
// rollback of the pods, and is removed with the last pod.
//
// The alias of the first device identifies the Run that owns the tunnel. An ending Run clears it
// first.
func Run(ctx context.Context, c *Config, report func(line string)) error {
	own := "sluice node run " + rand.Text()
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	failed := ""
	for started := false; ; {
		changed, err := c.keep(own, &started)
		if err != nil && !started {
			return err
		}
		for _, line := range changed {
			report("applied: " + line)
		}
		if text := errorText(err); text != failed {
			if failed = text; text != "" {
				report(text)
			}
		}
		select {
		case <-tick.C:
			continue
		case <-ctx.Done():
		}
		if other, err := release(own); err != nil || other {
			return err
		}
		removed, err := Remove()
		for _, line := range removed {
			report("removed: " + line)
		}
		return err
	}
}

// keep applies the tunnel if it is incomplete, or if this Run has not done so yet.
func (c *Config) keep(own string, started *bool) (changed []string, err error) {
	owner, err := readOwner()
	if err != nil {
		return nil, err
	}
	if *started && (owner == own && c.complete() || owner != own && owner != "") {
		return nil, nil
	}
	if changed, err = Apply(c); err != nil {
		return changed, err
	}
	first := !*started
	*started = true
	if owner, err := readOwner(); err != nil || !first && owner != "" { // meanwhile another Run may own it
		return changed, err
	}
	return changed, setOwner(own)
}

// release reports whether another Run owns the tunnel, or takes it within releaseTime.
func release(own string) (other bool, err error) {
	if owner, err := readOwner(); err != nil || owner != own {
		return true, err
	}
	if err := setOwner(""); err != nil {
		return false, err
	}
	for end := time.Now().Add(releaseTime); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if owner, err := readOwner(); err != nil || owner != "" {
			return true, err
		}
	}
	return false, nil
}

// complete reports whether devices and firewall are as Apply makes them.
func (c *Config) complete() bool {
	list := firewall(c)
	for _, d := range devices {
		if !d.v6() || hasIPv6() {
			list = append(list, d.check(c.Tunnel)...)
		}
	}
	return !doctor.Failed(list)
}

// readOwner returns the alias of the first device; "" without an alias or a device.
func readOwner() (string, error) {
	link, err := devices[0].find()
	if err != nil || link == nil {
		return "", err
	}
	return link.Attrs().Alias, nil
}

// setOwner sets the alias of the first device, if there is one.
func setOwner(owner string) error {
	link, err := devices[0].find()
	if err != nil || link == nil {
		return err
	}
	if err := netlink.LinkSetAlias(link, owner); err != nil {
		return fmt.Errorf("device %s: setting its alias: %w", devices[0].name, err)
	}
	return nil
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return strings.TrimSpace(err.Error())
}
