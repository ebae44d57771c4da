//go:build !race

package flowtable

const raceEnabled = false
