// Package profiles holds the loads of the stateful generator, package stateful, so that its command
// finds them by name in any directory. Other generators that play the same loads take names and
// numbers from these files.
package profiles

import "embed"

// Files are the profiles, NAME.yaml each.
//
//go:embed *.yaml
var Files embed.FS
