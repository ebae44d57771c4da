package daemon

import "sluice.dev/sluice/control/config"

// Refusal says what about this host's interfaces keeps Run from starting by a configuration that is valid otherwise, in
// Run's own words; nil if nothing does. It reads only.
func Refusal(c *config.Configuration) error {
	found, err := findInterfaces(c)
	if err != nil {
		return err
	}
	_, _, err = plan(found.devices, c)
	return err
}
