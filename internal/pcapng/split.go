// Package pcapng cuts a stream in the form pcapng (draft-ietf-opsawg-pcapng) into files. Each file
// begins with the stream's section header and interfaces.
package pcapng

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Types of blocks, and the length of a block without body.
const (
	sectionHeader  = 0x0a0d0d0a
	interfaceBlock = 1
	packetBlock    = 6
	leastBlock     = 12
	mostBlock      = 16 << 20
)

// Splitter is an io.Writer of one stream, which must be little endian.
type Splitter struct {
	// Out gets the whole stream; if it is nil, the stream goes to files. The name of the only file
	// is Path; with Bytes or Age, a number is added before its extension.
	Out  io.Writer
	Path string
	// A new file begins when the present one would have more than Bytes, or is older than Age; 0:
	// never. The newest Keep files are kept; 0: all.
	Bytes int64
	Age   time.Duration
	Keep  int
	// Enough is called when Count packets are written; no more are written then. 0: never.
	Count  uint64
	Enough func()

	Packets uint64   // that were written
	Files   []string // that were written, the oldest first

	rest  []byte // the beginning of a block
	head  []byte // blocks with which each file begins
	file  *os.File
	bytes int64
	began time.Time
	next  int
}

// Write implements io.Writer.
func (s *Splitter) Write(b []byte) (int, error) {
	s.rest = append(s.rest, b...)
	at := 0
	for {
		block, err := blockOf(s.rest[at:])
		if err != nil {
			return 0, err
		}
		if block == nil {
			break
		}
		if err := s.block(block); err != nil {
			return 0, err
		}
		at += len(block)
	}
	s.rest = s.rest[:copy(s.rest, s.rest[at:])]
	return len(b), nil
}

var errForm = errors.New("pcapng: the stream has other data than little-endian blocks")

// blockOf returns the first block of b; nil if b does not have it whole.
func blockOf(b []byte) ([]byte, error) {
	if len(b) < leastBlock {
		return nil, nil
	}
	n := binary.LittleEndian.Uint32(b[4:])
	if n < leastBlock || n%4 != 0 || n > mostBlock {
		return nil, errForm
	}
	if len(b) < int(n) {
		return nil, nil
	}
	if binary.LittleEndian.Uint32(b[n-4:]) != n {
		return nil, errForm
	}
	return b[:n], nil
}

// block writes one block.
func (s *Splitter) block(b []byte) error {
	switch binary.LittleEndian.Uint32(b) {
	case sectionHeader, interfaceBlock:
		s.head = append(s.head, b...)
	case packetBlock:
		if s.Count > 0 && s.Packets == s.Count {
			return nil
		}
		if s.full(len(b)) {
			if err := s.open(); err != nil {
				return err
			}
		}
		if s.Packets++; s.Packets == s.Count {
			defer s.Enough()
		}
	}
	if s.Out != nil {
		_, err := s.Out.Write(b)
		return err
	}
	if s.file == nil {
		if err := s.open(); err != nil {
			return err
		}
		if binary.LittleEndian.Uint32(b) == sectionHeader {
			return nil // open has written it
		}
	}
	n, err := s.file.Write(b)
	s.bytes += int64(n)
	return err
}

// full reports whether a packet block of n bytes needs a new file.
func (s *Splitter) full(n int) bool {
	return s.file != nil && s.bytes > int64(len(s.head)) &&
		(s.Bytes > 0 && s.bytes+int64(n) > s.Bytes || s.Age > 0 && time.Since(s.began) >= s.Age)
}

// open begins a file, and removes the oldest one if there are too many.
func (s *Splitter) open() error {
	if err := s.Close(); err != nil {
		return err
	}
	name := s.Path
	if s.Bytes > 0 || s.Age > 0 {
		s.next++
		ext := filepath.Ext(name)
		name = fmt.Sprintf("%s-%05d%s", strings.TrimSuffix(name, ext), s.next, ext)
	}
	file, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	s.file, s.began, s.bytes = file, time.Now(), int64(len(s.head))
	s.Files = append(s.Files, name)
	if s.Keep > 0 && len(s.Files) > s.Keep {
		if err := os.Remove(s.Files[0]); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		s.Files = s.Files[1:]
	}
	_, err = file.Write(s.head)
	return err
}

// Close closes the file.
func (s *Splitter) Close() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	s.file = nil
	return err
}
