package pcapng

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// stream is a capture of n packets, with one byte each, on two interfaces.
func stream(t *testing.T, n int) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := pcapgo.NewNgWriter(&b, layers.LinkTypeEthernet)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.AddInterface(pcapgo.NgInterface{Name: "second", LinkType: layers.LinkTypeEthernet,
		TimestampResolution: 9}); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		err := w.WritePacketWithOptions(gopacket.CaptureInfo{Timestamp: time.Unix(1, 0), CaptureLength: 1, Length: 1,
			InterfaceIndex: 1}, []byte{byte(i)},
			pcapgo.NgPacketOptions{Comments: []string{fmt.Sprintf("packet %02d", i)}})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// packets reads a capture back, and returns the byte of each packet.
func packets(t *testing.T, r io.Reader) (list []byte) {
	t.Helper()
	ng, err := pcapgo.NewNgReader(r, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for {
		b, ci, o, err := ng.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil || ci.InterfaceIndex != 1 || o.Comments[0] != fmt.Sprintf("packet %02d", b[0]) {
			t.Fatalf("%x, %+v, %+v: %v", b, ci, o, err)
		}
		list = append(list, b[0])
	}
}

// TestRemovedFile: a file of a rotation that somebody has removed does not end the capture.
func TestRemovedFile(t *testing.T) {
	s := &Splitter{Path: filepath.Join(t.TempDir(), "x.pcapng"), Bytes: int64(len(stream(t, 2))), Keep: 1}
	defer s.Close()
	in := stream(t, 8)
	for at := range in {
		if len(s.Files) > 0 {
			_ = os.Remove(s.Files[0])
		}
		if _, err := s.Write(in[at : at+1]); err != nil {
			t.Fatal(err)
		}
	}
	if s.Packets != 8 {
		t.Errorf("%d packets", s.Packets)
	}
}

// TestRotation: each file is a capture of its own, no packet is lost, and only the newest are kept.
func TestRotation(t *testing.T) {
	in := stream(t, 20)
	for _, piece := range []int{1, 7, len(in)} {
		dir := t.TempDir()
		s := &Splitter{Path: filepath.Join(dir, "web.pcapng"), Bytes: int64(len(stream(t, 6))), Keep: 2}
		for at := 0; at < len(in); at += piece {
			if _, err := s.Write(in[at:min(at+piece, len(in))]); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		names, err := filepath.Glob(dir + "/*")
		if err != nil || fmt.Sprint(names) != fmt.Sprint(s.Files) || len(names) != 2 ||
			names[1] != filepath.Join(dir, "web-00004.pcapng") {
			t.Fatalf("files %v, %v: %v", names, s.Files, err)
		}
		var all []byte
		for _, name := range names {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, packets(t, bytes.NewReader(b))...)
		}
		if s.Packets != 20 || !bytes.Equal(all, []byte{12, 13, 14, 15, 16, 17, 18, 19}) {
			t.Errorf("pieces of %d: %d packets, kept %v", piece, s.Packets, all)
		}
	}
}

// TestRotationByTime: a file that is older than Age gets no packet more.
func TestRotationByTime(t *testing.T) {
	s := &Splitter{Path: filepath.Join(t.TempDir(), "a"), Age: time.Nanosecond}
	if _, err := s.Write(stream(t, 3)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil || len(s.Files) != 3 {
		t.Errorf("files %v: %v", s.Files, err)
	}
}

// TestCount: the stream ends after Count packets, and is a whole capture.
func TestCount(t *testing.T) {
	var out bytes.Buffer
	enough := 0
	s := &Splitter{Out: &out, Count: 3, Enough: func() { enough++ }}
	if _, err := s.Write(stream(t, 20)); err != nil {
		t.Fatal(err)
	}
	if got := packets(t, &out); !bytes.Equal(got, []byte{0, 1, 2}) || enough != 1 || s.Packets != 3 {
		t.Errorf("packets %v, enough %d times", got, enough)
	}
}

// TestNotPcapng: other data is an error, and uses no memory.
func TestNotPcapng(t *testing.T) {
	s := &Splitter{Out: io.Discard}
	if _, err := s.Write([]byte("HTTP/1.1 500 nothing here is a block\r\n")); !errors.Is(err, errForm) {
		t.Errorf("got %v", err)
	}
}
