package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/table"
	"sluice.dev/sluice/internal/wake"
	"sluice.dev/sluice/serve/status"
)

// timesFlags are the flags that show times in place of traffic.
type timesFlags struct {
	chosen bool
	over   time.Duration
}

const timesHelp = "\n\n--time shows instead how long endpoints took to answer, as median and 99th percentile:\n" +
	"  HANDSHAKE    TCP: from the client's first SYN to the endpoint's SYN-ACK; H-P99 its 99th percentile\n" +
	"  ANSWER       from the client's first datagram or payload to the endpoint's first one; A-P99\n" +
	"  RETRANS      SYNs that clients repeated before the endpoint's SYN-ACK; later ones: AFTER-SYN-ACK\n" +
	"  REFUSED      connections that the endpoint answered by RST; later RSTs: RST-BACKEND, RST-CLIENT\n" +
	"All times are measured at this gateway, so they do not contain the network of clients."

func newTimesFlags(c *cobra.Command) *timesFlags {
	f := new(timesFlags)
	c.Long += timesHelp
	c.Flags().BoolVar(&f.chosen, "time", false, "how long endpoints took to answer, repeated SYNs and resets")
	c.Flags().DurationVar(&f.over, "over", 0, "with --time: of this long from now, not since the daemon's start")
	c.PreRunE = func(*cobra.Command, []string) error {
		switch {
		case f.over < 0:
			return usageError{fmt.Errorf("--over is %v: give a time such as 10s", f.over)}
		case f.over != 0 && !f.chosen:
			return usageError{errors.New("--over needs --time")}
		}
		return nil
	}
	return f
}

// ask returns the times since the daemon's start, or of the next f.over.
func (f *timesFlags) ask(ctx context.Context, client *status.Client) (v status.AllTimesView, err error) {
	before := status.AllTimesView{}
	if f.over > 0 {
		if before, err = client.Times(ctx); err != nil {
			return v, err
		}
		if !wake.After(ctx, f.over) {
			return v, context.Cause(ctx)
		}
	}
	if v, err = client.Times(ctx); err != nil || f.over == 0 {
		return v, err
	}
	return v.Since(&before), nil
}

// showTimes prints the times of the rows that ask returns. Both tables have the same Key for a row.
func showTimes[R, T any](ctx context.Context, client *status.Client, f *timesFlags, l *listing[R],
	ask func() ([]R, error), t *table.Table[T], of func(*status.AllTimesView) []T) error {
	if l.rates {
		return usageError{errors.New("--rate and --time exclude each other: --over limits times to the next seconds")}
	}
	if err := hasColumn(t, l.sort); err != nil {
		return err
	}
	selected, err := ask()
	if err != nil {
		return err
	}
	chosen := make(map[string]bool)
	for i := range selected {
		chosen[l.table.Key(&selected[i])] = true
	}
	all, err := f.ask(ctx, client)
	if err != nil {
		return err
	}
	list := slices.DeleteFunc(of(&all), func(v T) bool { return !chosen[t.Key(&v)] })
	t.Sort(list, l.sort)
	return l.s.print(list, func(r *rows) { printTable(l.s, r, t, list, l.form()) })
}

func serviceTimesTable() *table.Table[status.ServiceTimesView] {
	type view = status.ServiceTimesView
	return &table.Table[view]{
		Key: timesKey,
		Columns: append([]table.Column[view]{
			{Name: "NAMESPACE", Text: func(v *view) string { return v.Namespace }},
			{Name: "SERVICE", Text: func(v *view) string { return v.Service }},
			{Name: "PORT", Text: portText},
		}, timesColumns(func(v *view) *status.TimesView { return &v.TimesView })...),
	}
}

func backendTimesTable() *table.Table[status.BackendTimesView] {
	type view = status.BackendTimesView
	return &table.Table[view]{
		Key: func(v *view) string { return timesKey(&v.ServiceTimesView) + " " + v.Address.String() },
		Columns: append([]table.Column[view]{
			{Name: "NAMESPACE", Show: table.Wide, Text: func(v *view) string { return v.Namespace }},
			{Name: "SERVICE", Text: func(v *view) string { return v.Service }},
			{Name: "PORT", Show: table.Wide, Text: func(v *view) string { return portText(&v.ServiceTimesView) }},
			{Name: "BACKEND", Text: func(v *view) string { return v.Address.String() }},
		}, timesColumns(func(v *view) *status.TimesView { return &v.TimesView })...),
	}
}

func timesKey(v *status.ServiceTimesView) string {
	return servicePortKey(v.Namespace, v.Service, v.PortName, v.Port, v.Protocol)
}

func portText(v *status.ServiceTimesView) string { return servicePort("", v.Port, v.Protocol) }

// timesColumns are the columns of times of rows of any type.
func timesColumns[T any](of func(*T) *status.TimesView) []table.Column[T] {
	type times = status.TimesView
	micros := func(name string, show table.Show, h func(*times) *status.HistogramView,
		at func(*status.HistogramView) uint64) table.Column[T] {
		return table.Column[T]{Name: name, Show: show,
			Text:   func(v *T) string { return quantile(h(of(v)), at(h(of(v)))) },
			Number: func(v *T) (float64, bool) { return float64(at(h(of(v)))), h(of(v)).Count > 0 }}
	}
	count := func(name string, show table.Show, n func(*times) uint64) table.Column[T] {
		return table.Column[T]{Name: name, Show: show,
			Text:   func(v *T) string { return strconv.FormatUint(n(of(v)), 10) },
			Number: func(v *T) (float64, bool) { return float64(n(of(v))), true }}
	}
	handshake := func(v *times) *status.HistogramView { return &v.Handshake }
	answer := func(v *times) *status.HistogramView { return &v.Answer }
	median := func(h *status.HistogramView) uint64 { return h.MedianMicros }
	p99 := func(h *status.HistogramView) uint64 { return h.P99Micros }
	return []table.Column[T]{
		count("HANDSHAKES", table.Wide, func(v *times) uint64 { return v.Handshake.Count }),
		micros("HANDSHAKE", table.Always, handshake, median),
		micros("H-P99", table.Always, handshake, p99),
		count("ANSWERS", table.Wide, func(v *times) uint64 { return v.Answer.Count }),
		micros("ANSWER", table.Always, answer, median),
		micros("A-P99", table.Always, answer, p99),
		count("RETRANS", table.Plain, func(v *times) uint64 { return v.RepeatedSYNs }),
		count("AFTER-SYN-ACK", table.Wide, func(v *times) uint64 { return v.RepeatedSYNsAfterAnswer }),
		count("REFUSED", table.Plain, func(v *times) uint64 { return v.Refused }),
		count("RST-BACKEND", table.Wide, func(v *times) uint64 { return v.ResetByBackend }),
		count("RST-CLIENT", table.Wide, func(v *times) uint64 { return v.ResetByClient }),
	}
}

// quantile prints a time of a histogram with three digits at most, or - if the histogram is empty.
func quantile(h *status.HistogramView, micros uint64) string {
	if h.Count == 0 {
		return "-"
	}
	d := time.Duration(micros) * time.Microsecond
	switch {
	case d >= time.Minute:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(10 * time.Millisecond)
	case d >= time.Millisecond:
		d = d.Round(10 * time.Microsecond)
	}
	return d.String()
}
