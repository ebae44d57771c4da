// Package deploy has no code: it tests what is deployed. The chart is in chart, the
// manifests that it renders by default in manifests, and what renders them and builds
// the image in tools, a module of its own.
//
// The tests hold the rendered manifests against the Kubernetes types, against the
// configuration that the daemon takes, and against the daemon itself: it runs with
// real traffic, confined as its pod is.
package deploy
