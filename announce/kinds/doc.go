// Package kinds parses the objects by which operators configure announcements: BGPPeer,
// BGPAdvertisement, BFDProfile, Community and L2Advertisement of sluice.dev, and MetalLB's objects
// with the same names, whose fields have the same names and meaning. Objects come from an API
// server or a file, in one form.
//
//	objects ── Reader.Read ──▶ Set, the input of speakers
//	                     └───▶ Problems: the object, the mistake and its effect
//
// If an object becomes unreadable, its previous version stays in force, so that a mistake moves no
// route.
package kinds
