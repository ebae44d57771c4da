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

// Query asks who had a source address and port towards a backend, or which flows of a client there
// were.
type Query struct {
	// SNAT is the source that the backend saw; it may be the client itself, whose address is kept.
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

// Holder is a flow that had the source at the time of a Query, as far as the log knows.
type Holder struct {
	Record             // of its end, or of its begin if the log has no end
	Ended    time.Time // zero: the log has no end of it
	Restarts int       // processes that continued the log between the begin and the time of the query
}

// Answer is the result of Find.
type Answer struct {
	Holders []Holder
	// Before and After are the nearest flows with the source: the last one that ended before the
	// time of the query, and the first one that began after it. nil: there is none.
	Before, After *Holder
	// Later are all flows that began after the time of the query, and have no end in the log.
	Later []Holder
	// From is the time of the oldest line, and Lost the number of lines that lines Lost name.
	From  time.Time
	Lost  uint64
	Files int
	// Unread has why files could not be read to their ends: their rest is not in the answer.
	Unread []string
}

// finder reads the lines of the log in order.
type finder struct {
	q    *Query
	a    Answer
	text []byte // that each matching line has
	// open has the flows whose begin was read and whose end was not, by key. ended has the starts
	// of flows whose end was read and whose begin was not: different workers may have written the
	// two lines.
	open  map[key]*Holder
	ended map[key]time.Time
}

// key tells flows with one source apart.
type key struct {
	protocol             string
	client, vip, backend netip.AddrPort
}

func keyOf(r *Record) key { return key{r.Protocol, r.Client, r.VIP, r.Backend} }

// Find searches the log in a directory. All files are read, a compressed gigabyte takes some
// seconds. It fails if none can be read.
func Find(directory string, q Query) (*Answer, error) {
	names, err := list(directory)
	if err != nil {
		return nil, err
	}
	f := finder{q: &q, open: map[key]*Holder{}, ended: map[key]time.Time{}, text: []byte(`"snat":"` + q.SNAT.String() + `"`)}
	var failed []error
	for _, name := range names {
		err := f.file(directory, name)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // removed meanwhile: it was the oldest
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

// longestLine bounds a line; the lines of this package have some 500 bytes.
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
			continue // no line of this package
		}
		if errors.Is(err, io.EOF) {
			return nil // the rest is part of a line
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
		return // torn, when a process was killed or a disk was full
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

// startError bounds the difference between the start in an end and the time of its begin: the
// resolution of accounts, and small steps of the wall clock.
const startError = time.Millisecond

// flow weighs a flow of which all is known now.
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
