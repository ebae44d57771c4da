// Package trex contains only tests of its Python profiles, which are for TRex on machines with NICs
// that it supports. They were not run on such a machine; README.md lists the checks that were made.
package trex
