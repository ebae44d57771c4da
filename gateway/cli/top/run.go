package top

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gdamore/tcell/v2"

	"sluice.dev/sluice/internal/wake"
)

// headEvery is the interval of the first line.
const headEvery = 5 * time.Second

// NewTerminal returns the terminal of the process, or an error that says why it cannot show top.
func NewTerminal() (tcell.Screen, error) {
	if term := os.Getenv("TERM"); term == "" || term == "dumb" {
		return nil, fmt.Errorf("the terminal (TERM=%q) cannot place the cursor: use `sluice services --watch`, or "+
			"another TERM such as xterm", term)
	}
	s, err := tcell.NewScreen()
	if err == nil {
		err = s.Init()
	}
	if err != nil {
		return nil, fmt.Errorf("the terminal (TERM=%s): %w; try TERM=xterm", os.Getenv("TERM"), err)
	}
	s.EnableMouse(tcell.MouseButtonEvents)
	return s, nil
}

// answer is a result of Feed.Read.
type answer struct {
	feed  Feed
	apply func()
	err   error
	began time.Time
	took  time.Duration
}

// Run shows a model until the operator leaves or ctx ends. head reads the first line.
func Run(ctx context.Context, s tcell.Screen, m *Model, head func(context.Context) (Head, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, stop := make(chan tcell.Event), make(chan struct{})
	defer close(stop)
	go s.ChannelEvents(events, stop)
	answers, heads := make(chan answer), make(chan Head)
	go readHeads(ctx, head, heads)

	var reading Feed // whose answer is awaited
	var next <-chan time.Time
	var nextOf Feed
	for !m.Quit() {
		// Ask at once for a list that is new, and otherwise when it is time.
		f, _ := m.Feed()
		if f == nil || f != nextOf {
			next, nextOf = nil, nil
		}
		if reading == nil && f != nil && next == nil {
			reading = f
			go read(ctx, f, answers)
		}
		m.Draw(s)
		select {
		case <-ctx.Done():
			return nil
		case e, open := <-events:
			if !open {
				return errors.New("the terminal was closed")
			}
			handle(s, m, e)
		case h := <-heads:
			m.SetHead(h)
		case a := <-answers:
			reading = nil
			m.Answer(a.feed, a.apply, a.err, a.began, a.took)
			_, wait := m.Feed()
			next, nextOf = time.After(max(wait-a.took, 0)), a.feed
		case <-next:
			next, nextOf = nil, nil
		}
	}
	return nil
}

func handle(s tcell.Screen, m *Model, e tcell.Event) {
	switch e := e.(type) {
	case *tcell.EventKey:
		m.Key(e)
	case *tcell.EventMouse:
		m.Mouse(e)
	case *tcell.EventResize:
		s.Sync()
	}
}

func read(ctx context.Context, f Feed, answers chan<- answer) {
	began := time.Now()
	apply, err := f.Read(ctx)
	select {
	case answers <- answer{f, apply, err, began, time.Since(began)}:
	case <-ctx.Done():
	}
}

// readHeads reads the first line until ctx ends.
func readHeads(ctx context.Context, head func(context.Context) (Head, error), heads chan<- Head) {
	for {
		h, err := head(ctx)
		if err != nil {
			h = Head{Text: "sluice top: " + err.Error(), Urgent: true}
		}
		select {
		case heads <- h:
		case <-ctx.Done():
			return
		}
		if !wake.After(ctx, headEvery) {
			return
		}
	}
}
