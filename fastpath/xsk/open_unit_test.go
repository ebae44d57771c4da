package xsk

import (
	"testing"
)

func TestUMEM(t *testing.T) {
	for _, c := range []UMEMConfig{
		{Frames: 0, FrameSize: 2048}, {Frames: 8, FrameSize: 1024}, {Frames: 8, FrameSize: 3000},
	} {
		if _, err := NewUMEM(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
	u, err := NewUMEM(UMEMConfig{Frames: 100, FrameSize: 4096, HugePages: true}) // huge if some are reserved
	must(t, err)
	if len(u.Bytes()) != 409600 || u.Frames() != 100 || u.FrameSize() != 4096 {
		t.Errorf("%d bytes in %d frames of %d", len(u.Bytes()), u.Frames(), u.FrameSize())
	}
	must(t, u.Close())
	if u.Close() == nil {
		t.Error("closed twice")
	}
}
