// Package prefetch requests a cache line from memory before it is needed. A load that misses stalls
// all later instructions as soon as the reorder buffer is full. A prefetch does not, so that many
// misses can be in flight at once.
//
// There is a stub in assembly for amd64 and arm64. Other builds (also with the build tag noasm) use
// its Go twin, which does nothing: a program that is correct with the stub is correct without it.
package prefetch
