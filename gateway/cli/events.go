package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/internal/wake"
	"sluice.dev/sluice/serve/status"
)

// sinceFlag is a flag that takes a time, or a duration before the daemon's time.
type sinceFlag struct {
	t    time.Time
	over time.Duration // 0: t is the time
}

// String, Set and Type implement pflag.Value.
func (f *sinceFlag) String() string {
	switch {
	case f.over > 0:
		return f.over.String()
	case f.t.IsZero():
		return ""
	}
	return f.t.Format(time.RFC3339)
}

// Type names the flag's values in help.
func (f *sinceFlag) Type() string { return "time" }

// Set returns an error for a text that is neither a time nor a positive duration.
func (f *sinceFlag) Set(s string) (err error) {
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		f.t, f.over = time.Time{}, d
		return nil
	}
	f.over = 0
	if f.t, err = time.Parse(time.RFC3339, s); err != nil {
		return errors.New("write a duration such as 15m or 2h, or a time such as 2026-03-01T08:00:00Z")
	}
	return nil
}

func (s *session) eventsCommand() *cobra.Command {
	var since sinceFlag
	var follow bool
	c := &cobra.Command{
		Use:     "events",
		Aliases: []string{"event"},
		Short:   "List changes of the gateway, its objects and its traffic",
		Long: "events lists changes, oldest first: objects and endpoints, drains, denied clients, checks of\n" +
			"endpoints, the configuration, interfaces, hand-overs, and drops that begin or end.\n" +
			"An event is a line of the daemon's log of level info or above, for each log.level. The newest events\n" +
			"outlive a restart.",
		Example: "  sluice events --since 2h\n" +
			"  sluice events -f\n" +
			"  sluice events -o json --since 2026-03-01T08:00:00Z",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if follow {
				return s.followEvents(c.Context(), since)
			}
			return s.ask(func(client *status.Client) error {
				list, err := since.events(c.Context(), client, 0)
				if err != nil {
					return err
				}
				if len(list) == 0 {
					s.note("There are no events.")
				}
				return s.print(list, func(r *rows) {
					for i := range list {
						r.in(ofLevel(list[i].Level)).line(eventLine(&list[i]))
					}
				})
			})
		},
	}
	c.Flags().Var(&since, "since", "only events after a time, or of the last 2h")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on and print events as they come; with -o json one a line")
	return c
}

// events lists the events since then. later is the time since the flag was given.
func (f *sinceFlag) events(ctx context.Context, client *status.Client, later time.Duration,
) ([]status.EventView, error) {
	if f.over > 0 {
		return client.EventsOver(ctx, f.over+later)
	}
	return client.Events(ctx, f.t)
}

// eventLine prints an event on one line.
func eventLine(e *status.EventView) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %-5s  %s", shortTime(e.Time), e.Level, e.Message)
	for _, key := range slices.Sorted(maps.Keys(e.Details)) {
		value := e.Details[key]
		if value == "" || strings.ContainsFunc(value, func(r rune) bool {
			return r == '"' || r == '=' || unicode.IsSpace(r) || !unicode.IsPrint(r)
		}) {
			value = strconv.Quote(value)
		}
		fmt.Fprintf(&b, "  %s=%s", key, value)
	}
	return objects.Printable(b.String(), '\n')
}

// followEvery is the interval between two requests for new events.
const followEvery = time.Second

// followEvents prints events until ctx ends. It waits for a daemon that is being restarted.
func (s *session) followEvents(ctx context.Context, since sinceFlag) error {
	began := time.Now()
	ctx, left := s.attached(ctx, nil)
	defer left()
	client := status.NewClient(s.socket)
	for first := true; ; first = false {
		list, err := since.events(ctx, client, time.Since(began))
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil && !errors.Is(err, status.ErrNotRunning) && !errors.Is(err, status.ErrNoAnswer):
			return err
		}
		for i := range list {
			if err := s.printEvent(&list[i]); err != nil {
				return err
			}
			since = sinceFlag{t: list[i].Time}
		}
		if !wake.After(ctx, followEvery) {
			return nil
		}
	}
}

// printEvent prints one event of a list without an end.
func (s *session) printEvent(e *status.EventView) error {
	if s.format.text() {
		line := eventLine(e)
		if s.colours() {
			line = ofLevel(e.Level).paint(line)
		}
		_, err := fmt.Fprintln(s.app.Out, line)
		return err
	}
	if s.format == formatJSON {
		return json.NewEncoder(s.app.Out).Encode(e)
	}
	if _, err := io.WriteString(s.app.Out, "---\n"); err != nil {
		return err
	}
	return s.print(e, nil)
}
