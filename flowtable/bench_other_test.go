//go:build !linux

package flowtable

import "testing"

func benchMemory(_ *testing.B, size int64) []byte { return heapMemory(size) }
