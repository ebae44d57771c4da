// Package archive writes an archive about gateways for support, without secrets, and without
// addresses if they are to stay private. It builds for every system that kubectl runs on.
//
//	parts ──gather──▶ bytes ──secrets──▶ ──addresses──▶ tar.gz, index.json last
//
// Each part has a bound of time and size. A part that fails is named in the index with its reason,
// and the others are still there.
package archive

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// The bounds of a part that has none of its own.
const (
	maxPartBytes = 8 << 20
	partTimeout  = 15 * time.Second
)

// Part is one file of the archive.
type Part struct {
	Name string
	// Binary is not text: it has no secrets and no addresses.
	Binary bool
	// Addresses are in it in a form that cannot be replaced: without addresses it is left out.
	Addresses bool
	// Timeout and MaxBytes bound the part; 0: 15 s, 8 MiB.
	Timeout  time.Duration
	MaxBytes int
	Write    func(context.Context, io.Writer) error
}

// Entry describes a part in the index.
type Entry struct {
	Name      string `json:"name"`
	Bytes     int    `json:"bytes"`
	TookMilli int64  `json:"tookMilliseconds"`
	// Truncated: the part was longer than the bound, and ends there; JSON ends with the last whole
	// element before it.
	Truncated bool `json:"truncated,omitempty"`
	// Error is the reason why the part is missing or ends early.
	Error string `json:"error,omitempty"`
}

// Index is index.json, the last file of the archive.
type Index struct {
	Version          string    `json:"version"`
	At               time.Time `json:"at"`
	WithoutAddresses bool      `json:"withoutAddresses"`
	Parts            []Entry   `json:"parts"`
}

// Failed returns the entries with an error.
func (x *Index) Failed() (list []Entry) {
	for _, e := range x.Parts {
		if e.Error != "" {
			list = append(list, e)
		}
	}
	return list
}

// Problems has a line for each part that is missing or not complete.
func (x *Index) Problems() (lines []string) {
	for _, e := range x.Parts {
		switch {
		case e.Error != "" && e.Bytes == 0:
			lines = append(lines, "without "+e.Name+": "+e.Error)
		case e.Error != "":
			lines = append(lines, e.Name+" is not complete: "+e.Error)
		case e.Truncated:
			lines = append(lines, fmt.Sprintf("%s is not complete: it was cut at %d bytes", e.Name, e.Bytes))
		}
	}
	return lines
}

// Write gathers the parts one after the other and writes the archive. Its error is about the
// archive: failures of parts are in the index. Without names addresses stay.
func Write(ctx context.Context, to io.Writer, parts []Part, version string, names *Names) (*Index, error) {
	x := &Index{Version: version, At: time.Now().UTC().Truncate(time.Second), WithoutAddresses: names != nil}
	zip := gzip.NewWriter(to)
	archive := tar.NewWriter(zip)
	add := func(name string, content []byte) error {
		err := archive.WriteHeader(&tar.Header{Name: "sluice-support/" + name, Mode: 0o600, Size: int64(len(content)),
			ModTime: x.At, Format: tar.FormatPAX})
		if err == nil {
			_, err = archive.Write(content)
		}
		return err
	}
	for i := range parts {
		p := &parts[i]
		content, e := gather(ctx, p, names)
		if e.Bytes > 0 {
			if err := add(e.Name, content); err != nil {
				return x, fmt.Errorf("write the archive: %w", err)
			}
		}
		x.Parts = append(x.Parts, e)
		if ctx.Err() != nil {
			return x, context.Cause(ctx)
		}
	}
	text, err := json.MarshalIndent(x, "", "  ")
	if err == nil {
		err = add("index.json", append(text, '\n'))
	}
	if err = errors.Join(err, archive.Close(), zip.Close()); err != nil {
		return x, fmt.Errorf("write the archive: %w", err)
	}
	return x, nil
}

// FileName returns the default name of an archive that is written at a time.
func FileName(at time.Time) string {
	return "sluice-support-" + at.UTC().Format("20060102-150405") + ".tar.gz"
}

// WriteFile is Write to a new file, which only its owner may read. After an error there is no file.
func WriteFile(ctx context.Context, path string, parts []Part, version string, names *Names) (*Index, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	x, err := Write(ctx, f, parts, version, names)
	if err = errors.Join(err, f.Close()); err != nil {
		return x, errors.Join(err, os.Remove(path))
	}
	return x, nil
}

// gather returns the content of a part.
func gather(ctx context.Context, p *Part, names *Names) ([]byte, Entry) {
	e := Entry{Name: p.Name}
	if names != nil { // a name of a node may have its address
		e.Name = string(names.replace([]byte(p.Name)))
	}
	if names != nil && p.Addresses {
		e.Error = "left out: its addresses are not text that can be replaced"
		return nil, e
	}
	began := time.Now()
	timeout := cmp.Or(p.Timeout, partTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not complete within %v", timeout))
	defer cancel()
	b := &bounded{most: cmp.Or(p.MaxBytes, maxPartBytes)}
	done := make(chan error, 1)
	go func() { done <- p.Write(ctx, b) }()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done(): // the part may be in a system call that ends late or never
		err = context.Cause(ctx)
	}
	content, full := b.end()
	e.TookMilli, e.Truncated = time.Since(began).Milliseconds(), full
	switch {
	case err != nil && !(full && errors.Is(err, errFull)):
		e.Error = err.Error()
	case full && p.Binary:
		e.Error = fmt.Sprintf("it was longer than %d bytes, and its end is missing", b.most)
	}
	if strings.HasSuffix(p.Name, ".json") && (full || err != nil) {
		content = closed(content)
	}
	if !p.Binary {
		content = withoutSecrets(content)
	}
	if names != nil {
		e.Error = string(names.replace([]byte(e.Error)))
		if !p.Binary {
			content = names.replace(content)
		}
	}
	e.Bytes = len(content)
	return content, e
}

// closed makes the begin of a JSON value a value: it ends with the last element of a list or object
// that is complete.
func closed(text []byte) []byte {
	var open, ends []byte // closing brackets of the open values, innermost last: at i, and at end
	list := bytes.HasPrefix(text, []byte("["))
	end, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			open = append(open, c+2) // ASCII: ']' is '[' + 2, and '}' is '{' + 2
		case c == ']' || c == '}':
			if open = open[:max(0, len(open)-1)]; len(open) == 0 {
				return text // it is complete
			}
		case c == ',' && (!list || len(open) == 1 || len(ends) != 1): // elements of a list stay whole
			end, ends = i, append(ends[:0], open...)
		}
	}
	if end == 0 {
		return nil
	}
	slices.Reverse(ends)
	return append(append(text[:end:end], ends...), '\n')
}

// errFull ends the writer of a part at the bound.
var errFull = errors.New("the part is full")

// bounded keeps the first bytes that are written to it, until its end.
type bounded struct {
	most int // bytes

	mu    sync.Mutex // guards the fields below
	text  bytes.Buffer
	full  bool
	ended bool
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return 0, errFull
	}
	if room := b.most - b.text.Len(); len(p) > room {
		b.text.Write(p[:room])
		b.full = true
		return room, errFull
	}
	return b.text.Write(p)
}

// end returns the bytes that were written. Later writes fail.
func (b *bounded) end() (content []byte, full bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	return b.text.Bytes(), b.full
}
