// Package deploy contains only tests of the deployment files. The chart is in chart, the manifests
// rendered from it with default values in manifests, and the programs that render them and build
// the image in tools, a separate module.
//
// The tests compare the rendered manifests with the Kubernetes types and with the daemon's
// configuration, and run the daemon with real traffic, confined as its pod is.
package deploy
