//go:build !linux

package flowtable

import (
	"testing"
	"time"
)

func benchMemory(_ *testing.B, size int64) []byte { return heapMemory(size) }

var started = time.Now()

func threadTime() time.Duration { return time.Since(started) }
