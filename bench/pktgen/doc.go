// Package pktgen has no Go but tests: pktgen.sh is for machines with NICs. It was not run
// on one, but with a kernel's generator on veth; README.md lists what was checked.
package pktgen
