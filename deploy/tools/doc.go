// Package tools holds the programs that make the deployed files: the manifests from the chart, and
// the container image. It is a separate module, so that the gateway does not depend on Helm or on
// libraries for image formats.
//
//	go run ./chart   lint and render deploy/chart (make -C deploy chart)
//	go run ./image   put binaries into an image (make image)
//	go run ./release archives, SBOMs and sums of a release (make release)
//
// Package licenses collects the licence texts of linked modules, which image and archives contain.
package tools
