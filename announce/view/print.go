package view

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// Print writes a View as text. It replaces characters that a terminal would interpret.
func Print(to io.Writer, v *View) error {
	var b strings.Builder
	if err := printView(&b, v); err != nil {
		return err
	}
	_, err := io.WriteString(to, strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, b.String()))
	return err
}

func printView(w io.Writer, v *View) error {
	fmt.Fprintf(w, "node %s, process %d, version %s, since %s\n", v.Node, v.PID, v.Version,
		v.StartedAt.Format(time.RFC3339))
	switch {
	case v.Waiting != "":
		fmt.Fprintf(w, "nothing is announced yet: %s\n", v.Waiting)
	case v.Why != "":
		fmt.Fprintf(w, "gateway: %s: %s\n", v.Gateway, v.Why)
	default:
		fmt.Fprintf(w, "gateway: %s\n", v.Gateway)
	}
	for _, why := range v.Stalled {
		fmt.Fprintf(w, "NOT UP TO DATE: %s; restart the announcer, and report it\n", why)
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	if len(v.Peers) > 0 {
		fmt.Fprintln(t, "\nPEER\tADDRESS\tASN\tSTATE\tSINCE\tBFD\tROUTES\tWHY")
	}
	for i := range v.Peers {
		p := &v.Peers[i]
		since, asn := "-", "any"
		if p.Since != nil {
			since = p.Since.Format(time.DateTime)
		}
		if p.Speaker == Layer2 {
			asn = "-"
		} else if p.ASN != 0 {
			asn = strconv.FormatUint(uint64(p.ASN), 10)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", p.Name, p.Address, asn, strings.ToLower(p.State), since,
			cmp.Or(p.BFD, "-"), p.Routes, cmp.Or(p.Why, "-"))
	}
	if len(v.VIPs) == 0 && v.Waiting == "" {
		fmt.Fprintln(t, "\nThe gateway serves no VIP.")
	}
	if len(v.VIPs) > 0 {
		fmt.Fprintln(t, "\nVIP\tSERVICES\tPOOL\tSTATE\tTO\tPREFIX\tATTRIBUTES\tWHY")
	}
	for i := range v.VIPs {
		vip := &v.VIPs[i]
		for _, l := range vip.To {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", vip.Address, strings.Join(vip.Services, ","),
				cmp.Or(vip.Pool, "-"), l.State, cmp.Or(l.To, "-"), cmp.Or(l.What, "-"), cmp.Or(l.With, "-"),
				cmp.Or(l.Why, "-"))
		}
	}
	if len(v.Sources) > 0 {
		fmt.Fprintln(t, "\nSOURCE ADDRESS\tRANK\tSTATE\tTO\tPREFIX\tATTRIBUTES\tWHY")
	}
	for i := range v.Sources {
		for _, l := range v.Sources[i].To {
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", v.Sources[i].Address, v.Sources[i].Rank, l.State,
				cmp.Or(l.To, "-"), cmp.Or(l.What, "-"), cmp.Or(l.With, "-"), cmp.Or(l.Why, "-"))
		}
	}
	if len(v.Problems) > 0 {
		fmt.Fprintln(t, "\nOBJECT\tREASON\tPROBLEM")
	}
	for _, p := range v.Problems {
		fmt.Fprintf(t, "%s\t%s\t%s\n", p.Object, p.Reason, p.Note)
	}
	return t.Flush()
}
