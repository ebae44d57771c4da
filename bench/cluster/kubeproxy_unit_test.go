package cluster

import (
	"os"
	"testing"
	"time"
)

func TestCPUOfThisProcess(t *testing.T) {
	before, err := cpu(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); ; {
		now, err := cpu(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if now.Own >= before.Own+50*time.Millisecond {
			return // reading it costs time, which it shows
		}
		if time.Now().After(end) {
			t.Fatalf("busy for 30 s, and used %s", now.Own-before.Own)
		}
	}
}
