package console

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Part is one part of a demonstration. The error of Do means that the part could not be run;
// results are printed, and checked as expectations.
type Part struct {
	Title string
	Do    func(context.Context) error
}

// Play runs parts, numbered from 1, until one fails or ctx is done, and then returns ctx's error.
// After that no expectation is checked.
func (p *Console) Play(ctx context.Context, parts []Part) error {
	p.Muted = func() bool { return ctx.Err() != nil }
	for i, part := range parts {
		p.Heading(i+1, part.Title)
		err := part.Do(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("part %d: %w", i+1, err)
		}
	}
	return nil
}

// ErrInterrupted is wrapped by End's error when ctx was done before the end.
var ErrInterrupted = errors.New("interrupted")

// End ends a demonstration, with the error of Play or nil: it prints logs if something failed,
// removes everything, and prints the verdict. It returns nil only if every expectation was met.
func (p *Console) End(ctx context.Context, err error, logs func(), remove func() error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		p.Say("interrupted; everything is being removed")
		return errors.Join(ErrInterrupted, remove())
	}
	p.Muted = func() bool { return false }
	if err != nil {
		p.Fail("the demo can be carried out: " + err.Error())
	}
	if len(p.failed) > 0 {
		logs()
	}
	if err := remove(); err != nil {
		p.Fail("everything is removed: " + err.Error())
	}
	return p.verdict()
}

// Waited subtracts time from the duration in the verdict: the time in which a reader looked.
func (p *Console) Waited(d time.Duration) { p.began = p.began.Add(d) }

// verdict prints the summary, and returns the error for the exit status.
func (p *Console) verdict() error {
	took := time.Since(p.began).Seconds()
	failed := len(p.failed)
	if failed == 0 {
		fmt.Fprintf(p.w, "\n%s in %.1f s\n", p.Paint(green, fmt.Sprintf("All %d expectations met", p.met)), took)
		return nil
	}
	fmt.Fprintf(p.w, "\n%s after %.1f s:\n", p.Paint(red, fmt.Sprintf("%d FAILED, %d met", failed, p.met)), took)
	for _, text := range p.failed {
		p.Say("- %s", text)
	}
	return fmt.Errorf("%w: %d expectations", ErrExpectation, failed)
}
