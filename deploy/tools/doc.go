// Package tools holds what makes the things that are deployed: the manifests from the
// chart, and the container image. It is a module of its own, so that nothing of Helm
// or of image formats is among the dependencies of the gateway.
//
//	go run ./chart   lint and render deploy/chart (make -C deploy chart)
//	go run ./image   put binaries into an image (make image)
//	go run ./release archives, SBOMs and sums of a release (make release)
//
// Package licenses has the licence texts of what is linked into a binary, which image and archives
// carry.
package tools
