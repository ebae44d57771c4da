package napi

import (
	"fmt"

	"sluice.dev/sluice/internal/statefile"
)

// Original is a file with the settings that devices had before they were changed. A nil Original
// stores nothing.
type Original = statefile.Devices[map[string]string]

// OpenOriginal reads the file at path, which need not exist.
func OpenOriginal(path string) (*Original, error) {
	o, err := statefile.OpenDevices[map[string]string](path)
	if err != nil {
		return nil, fmt.Errorf("read the devices' original settings: %w "+
			"(to continue, compare the devices' settings with your own and then remove the file)", err)
	}
	return o, nil
}
