package hostlink

import (
	"fmt"
	"io"
	"os"
	"testing"
)

const (
	holdEnv = "SLUICE_HOSTLINK_HOLD"
	held    = "held\n"
)

// TestMain is also the main function of TestSecondInstance's first instance.
func TestMain(m *testing.M) {
	if os.Getenv(holdEnv) == "" {
		os.Exit(m.Run())
	}
	for range 2 { // a second call in the same process is allowed
		if _, err := Ensure(testConfig()); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	fmt.Print(held)
	_, _ = io.Copy(io.Discard, os.Stdin)
}
