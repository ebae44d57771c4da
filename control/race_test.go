//go:build race

package control_test

const raceDetector = true
