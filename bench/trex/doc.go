// Package trex has no Go but tests: the directory's Python profiles are for TRex, on
// machines with NICs that it drives. They were not run on such a machine; README.md lists what was
// checked.
package trex
