// Package ui tests the page of `sluice ui` in a headless Chromium: beside a gateway in memory. It
// is a module of its own, so that the gateway does not depend on a library for browsers.
//
//	make -C test ui-test
package ui
