package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/table"
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
	check := c.PreRunE
	c.PreRunE = func(c *cobra.Command, args []string) error {
		if check != nil {
			if err := check(c, args); err != nil {
				return err
			}
		}
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
		if err := wait(ctx, f.over); err != nil {
			return v, err
		}
	}
	if v, err = client.Times(ctx); err != nil || f.over == 0 {
		return v, err
	}
	return v.Since(&before), nil
}

// portOf identifies a service port.
type portOf struct{ namespace, service, port string }

// backendTimes prints the times of the endpoints that ask returns.
func backendTimes(ctx context.Context, s *session, client *status.Client, f *timesFlags,
	l *listing[status.BackendView], ask func() ([]status.BackendView, error)) error {
	type endpoint struct {
		portOf
		address netip.AddrPort
	}
	return showTimes(ctx, s, client, f, l, backendTimesTable(), ask, func(v *status.BackendView) endpoint {
		return endpoint{portOf{v.Namespace, v.Service, v.PortName}, v.Address}
	}, func(all *status.AllTimesView) []status.BackendTimesView { return all.Backends },
		func(v *status.BackendTimesView) endpoint {
			return endpoint{portOf{v.Namespace, v.Service, v.PortName}, v.Address}
		})
}

// serviceTimes prints the times of the service ports that ask returns.
func serviceTimes(ctx context.Context, s *session, client *status.Client, f *timesFlags,
	l *listing[status.ServiceView], ask func() ([]status.ServiceView, error)) error {
	return showTimes(ctx, s, client, f, l, serviceTimesTable(), ask, func(v *status.ServiceView) portOf {
		return portOf{v.Namespace, v.Name, v.PortName}
	}, func(all *status.AllTimesView) []status.ServiceTimesView { return all.Services },
		func(v *status.ServiceTimesView) portOf { return portOf{v.Namespace, v.Service, v.PortName} })
}

// showTimes prints the times of the rows whose identities ask's rows have.
func showTimes[R, T any, ID comparable](ctx context.Context, s *session, client *status.Client, f *timesFlags,
	l *listing[R], t *table.Table[T], ask func() ([]R, error), idOf func(*R) ID,
	of func(*status.AllTimesView) []T, id func(*T) ID) error {
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
	chosen := make(map[ID]bool)
	for i := range selected {
		chosen[idOf(&selected[i])] = true
	}
	all, err := f.ask(ctx, client)
	if err != nil {
		return err
	}
	list := slices.DeleteFunc(of(&all), func(v T) bool { return !chosen[id(&v)] })
	t.Sort(list, l.sort)
	return s.print(list, func(r *rows) { printTable(s, r, t, list, l.form()) })
}

func serviceTimesTable() *table.Table[status.ServiceTimesView] {
	type view = status.ServiceTimesView
	return &table.Table[view]{
		Key: func(v *view) string { return v.Namespace + "/" + v.Service + ":" + portText(v) },
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
		Key: func(v *view) string {
			return v.Namespace + "/" + v.Service + ":" + portText(&v.ServiceTimesView) + " " + v.Address.String()
		},
		Columns: append([]table.Column[view]{
			{Name: "NAMESPACE", Show: table.Wide, Text: func(v *view) string { return v.Namespace }},
			{Name: "SERVICE", Text: func(v *view) string { return v.Service }},
			{Name: "PORT", Show: table.Wide, Text: func(v *view) string { return portText(&v.ServiceTimesView) }},
			{Name: "BACKEND", Text: func(v *view) string { return v.Address.String() }},
		}, timesColumns(func(v *view) *status.TimesView { return &v.TimesView })...),
	}
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
