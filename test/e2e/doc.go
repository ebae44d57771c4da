// Package e2e proves the whole gateway: the real daemon, in a network of
// namespaces, between real TCP and UDP stacks, with both laws checked after every
// test. The figures that a test prints are the ones that documentation quotes.
// Its tests need root, and so the build tag root.
package e2e
