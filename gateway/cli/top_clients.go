package cli

import (
	"math"
	"strconv"

	"sluice.dev/sluice/gateway/clients"
	"sluice.dev/sluice/internal/table"
)

func clientTable() *table.Table[clients.Client] {
	type view = clients.Client
	rate := func(name string, of func(*view) float64, text func(uint64) string) table.Column[view] {
		return table.Column[view]{Name: name,
			Text: func(v *view) string {
				if !v.Rated {
					return ""
				}
				return text(uint64(math.Round(of(v))))
			},
			Number: func(v *view) (float64, bool) { return of(v), v.Rated }}
	}
	return &table.Table[view]{
		Key: func(v *view) string { return v.Address.String() },
		Columns: []table.Column[view]{
			{Name: "CLIENT", Text: func(v *view) string { return v.Address.String() }},
			{Name: "FLOWS", Text: func(v *view) string { return strconv.Itoa(v.Flows) },
				Number: func(v *view) (float64, bool) { return float64(v.Flows), true }},
			{Name: "OPENING", Text: func(v *view) string { return strconv.Itoa(v.Opening) },
				Number: func(v *view) (float64, bool) { return float64(v.Opening), true }},
			rate("PACKETS/s", func(v *view) float64 { return v.Packets },
				func(n uint64) string { return strconv.FormatUint(n, 10) }),
			rate("BYTES/s", func(v *view) float64 { return v.Bytes }, table.ByteCount),
		},
	}
}
