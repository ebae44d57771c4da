package config

import (
	"errors"
	"strings"
	"testing"
)

func TestCheckKernel(t *testing.T) {
	for _, c := range []struct {
		release string
		refused bool
		strange bool
	}{
		{release: "6.12.95+deb12-amd64"},
		{release: "6.12"},
		{release: "6.18.44-cloud-amd64"},
		{release: "7.0.0-rc1"},
		{release: "10.1.2"},
		{release: "6.11.11-amd64", refused: true},
		{release: "6.6.0", refused: true},
		{release: "6.1.0-50-amd64", refused: true},
		{release: "5.15.0-1234-aws", refused: true},
		{release: "4.19", refused: true},
		{release: "next", refused: true, strange: true},
		{release: "", refused: true, strange: true},
	} {
		err := CheckKernel(c.release)
		if (err != nil) != c.refused || errors.Is(err, ErrKernelRelease) != c.strange {
			t.Errorf("%q: %v", c.release, err)
		}
		if err != nil && (!strings.Contains(err.Error(), c.release) || !strings.Contains(err.Error(), "6.12")) {
			t.Errorf("%q: the message names neither the release nor what is needed: %v", c.release, err)
		}
	}
}
