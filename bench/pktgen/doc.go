// Package pktgen contains only tests: pktgen.sh is for machines with NICs. It was not run on one,
// but with a kernel's generator on veth; README.md lists the checks that were made.
package pktgen
