// Package prefetch asks the processor for a cache line before it is needed. A load that
// misses holds up all that comes after it as soon as the reorder buffer is full; a prefetch
// does not, so that many misses can be under way at once.
//
// There is a stub in assembly for amd64 and arm64. Its Go twin, which all else calls (also with the
// build tag noasm), does nothing: what is correct with the stub is correct without.
package prefetch
