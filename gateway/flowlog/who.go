package flowlog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"
)

// Query asks which clients had a source address and port towards a backend. For a
// backend that sees clients' addresses, the source is the client itself.
type Query struct {
	// SNAT is the source that the backend saw; if the client's address is kept, it is the client's.
	SNAT netip.AddrPort
	// Backend is the destination of these packets; zero: any.
	Backend netip.AddrPort
	// Protocol is a name as in Record; empty: any.
	Protocol string
	At       time.Time
}

func (q *Query) match(r *Record) bool {
	return r.SNAT == q.SNAT && (!q.Backend.IsValid() || r.Backend == q.Backend) &&
		(q.Protocol == "" || strings.EqualFold(r.Protocol, q.Protocol))
}

// Holder is a flow that had the source at the time of a Query, according to the log.
type Holder struct {
	Record             // of its end, or of its begin if the log has no end
	Ended    time.Time // zero: the log does not have the flow's end
	Restarts int       // processes that continued the log between the begin and the time of the query
}

// Answer is the result of Find.
type Answer struct {
	Holders []Holder
	// Before and After are the nearest flows with the source: the last one that ended before the
	// time of the query, and the first one that began after it. nil: there is none.
	Before, After *Holder
	// Later are all flows that began after the time of the query, and whose end is not in the log.
	Later []Holder
	// From is the time of the oldest line, and Lost the sum of the numbers in lines Lost.
	From  time.Time
	Lost  uint64
	Files int
	// Unread has an error for each file that could not be read to its end: the rest of the file is
	// missing in the answer.
	Unread []string
}

// finder reads the lines of the log in order.
type finder struct {
	q    *Query
	a    Answer
	text []byte // a text that each matching line contains
	// open has the flows whose begin was read and whose end was not, by key. ended has the starts
	// of flows whose end was read and whose begin was not: if different workers made the two
	// events, the lines may be in the wrong order.
	open  map[key]*Holder
	ended map[key]time.Time
}

// key distinguishes flows with the same source.
type key struct {
	protocol             string
	client, vip, backend netip.AddrPort
}

func keyOf(r *Record) key { return key{r.Protocol, r.Client, r.VIP, r.Backend} }

// Find searches the log in a directory. It reads all files; a compressed gigabyte takes some
// seconds. It fails if no file can be read.
func Find(directory string, q Query) (*Answer, error) {
	names, err := list(directory)
	if err != nil {
		return nil, err
	}
	f := finder{q: &q, open: map[key]*Holder{}, ended: map[key]time.Time{}, text: []byte(`"snat":"` + q.SNAT.String() + `"`)}
	var failed []error
	for _, name := range names {
		err := f.file(directory, name)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // else it was the oldest, and was removed meanwhile
			f.a.Unread = append(f.a.Unread, fmt.Sprintf("%s: %v", name, err))
			failed = append(failed, err)
		}
	}
	if f.a.Files == 0 && len(failed) > 0 {
		return nil, errors.Join(failed...)
	}
	for _, h := range f.open {
		f.flow(h)
		if h.Start.After(q.At) {
			f.a.Later = append(f.a.Later, *h)
		}
	}
	return &f.a, nil
}

// longestLine bounds the length of a line; the lines of this package have some 500 bytes.
const longestLine = 1 << 16

func (f *finder) file(directory, name string) error {
	in, err := openRead(directory, name)
	if err != nil {
		return err
	}
	defer in.Close()
	f.a.Files++
	lines := bufio.NewReaderSize(in, longestLine)
	for {
		line, err := lines.ReadSlice('\n')
		if err == nil {
			f.line(line)
			continue
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue // this package does not write such lines
		}
		if errors.Is(err, io.EOF) {
			return nil // the last line is incomplete, or there is none
		}
		return err
	}
}

var notes = [][]byte{[]byte(`"event":"` + Open + `"`), []byte(`"event":"` + Lost + `"`)}

func (f *finder) line(line []byte) {
	if !f.a.From.IsZero() && !bytes.Contains(line, f.text) && !bytes.Contains(line, notes[0]) &&
		!bytes.Contains(line, notes[1]) {
		return
	}
	var r Record
	if json.Unmarshal(line, &r) != nil {
		return // an incomplete line: a process was killed, or a disk was full
	}
	if f.a.From.IsZero() {
		f.a.From = r.Time
	}
	switch {
	case r.Event == Lost:
		f.a.Lost += r.Lines
	case r.Event == Open:
		for _, h := range f.open {
			if !r.Time.After(f.q.At) {
				h.Restarts++
			}
		}
	case !f.q.match(&r):
	case r.Event == Begin:
		if s, ok := f.ended[keyOf(&r)]; ok && r.Time.Sub(s).Abs() < startError {
			delete(f.ended, keyOf(&r))
			return
		}
		r.Start = r.Time
		if h := f.open[keyOf(&r)]; h != nil { // its end is lost
			h.Ended = r.Time
			f.flow(h)
		}
		f.open[keyOf(&r)] = &Holder{Record: r}
	case r.Event == End:
		h := &Holder{Record: r, Ended: r.Time}
		if begun := f.open[keyOf(&r)]; begun != nil {
			h.Start, h.Restarts = begun.Start, begun.Restarts
			delete(f.open, keyOf(&r))
		} else {
			f.ended[keyOf(&r)] = r.Start
		}
		f.flow(h)
	}
}

// startError bounds the difference between the start in a line End and the time of the line Begin:
// the resolution of accounts, and small steps of the wall clock.
const startError = time.Millisecond

// flow adds a flow, of which no more lines follow, to the answer.
func (f *finder) flow(h *Holder) {
	at := f.q.At
	switch {
	case !h.Ended.IsZero() && h.Ended.Before(at):
		if f.a.Before == nil || h.Ended.After(f.a.Before.Ended) {
			f.a.Before = h
		}
	case h.Start.After(at):
		if f.a.After == nil || h.Start.Before(f.a.After.Start) {
			f.a.After = h
		}
	default:
		f.a.Holders = append(f.a.Holders, *h)
	}
}
