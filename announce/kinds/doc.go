// Package kinds reads what operators write about announcing: BGPPeer, BGPAdvertisement, BFDProfile,
// Community and L2Advertisement of sluice.dev, and MetalLB's objects of the same names, whose
// fields have the same names and meaning. Objects come from an API server or a file, in one form.
//
//	objects ── Reader.Read ──▶ Set, what speakers announce by
//	                     └───▶ Problems: of which object, and what becomes of it
//
// An object that cannot be read keeps what it said before, so that a mistake moves no route.
package kinds
