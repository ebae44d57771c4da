package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/wording"
	"sluice.dev/sluice/serve/status"
)

// checkFilter returns an error if no flow was selected and the filter names a Service, VIP or
// backend that the gateway does not have: an empty table would look like one without flows. It
// accepts any client address. If everything that the filter names exists, it prints a note that no
// flow matches.
func (s *session) checkFilter(ctx context.Context, client *status.Client, f *status.FlowFilter, selected int) error {
	if selected > 0 {
		return nil
	}
	services, err := client.Services(ctx)
	if err != nil {
		return err
	}
	backends, err := client.Backends(ctx)
	if err != nil {
		return err
	}
	err = errors.Join(serviceFlag(f.Service).known(services), checkVIP(ctx, client, f, services),
		checkBackend(f.Backend, backends))
	if err != nil {
		return err
	}
	if f.IsZero() {
		s.note("The gateway has no flows.")
	} else {
		s.note("No flow matches: " + f.String() + ".")
	}
	return nil
}

// note prints a line on standard error, unless the output is JSON or YAML: standard output has only
// the result.
func (s *session) note(text string) {
	if s.format.text() {
		fmt.Fprintln(s.notes, text)
	}
}

// checkBackend returns an error if no backend has the address.
func checkBackend(e status.Endpoint, list []status.BackendView) error {
	if e.IsZero() {
		return nil
	}
	addresses := make([]netip.AddrPort, len(list))
	for i := range list {
		addresses[i] = list[i].Address
	}
	if slices.ContainsFunc(addresses, e.Match) {
		return nil
	}
	return errors.New("no backend " + e.String() + ", see `sluice backends`" + didYouMean(e, addresses))
}

// checkVIP returns an error if the address is no VIP or node port of a Service.
func checkVIP(ctx context.Context, client *status.Client, f *status.FlowFilter, list []status.ServiceView) error {
	if f.VIP.IsZero() {
		return nil
	}
	e := f.VIP
	if strings.HasPrefix(strings.ToLower(f.Protocol), "icmp") {
		e.Port = 0 // an ICMP flow's port is the identifier of an echo
	}
	var addresses []netip.AddrPort
	for i := range list {
		for _, frontend := range list[i].Frontends {
			a, err := netip.ParseAddrPort(frontend.Address)
			if err != nil {
				continue // written by a daemon of another version
			}
			if !a.Addr().IsUnspecified() {
				addresses = append(addresses, a)
				continue
			}
			node, err := isNodePort(ctx, client, e, &list[i], a)
			if err != nil || node {
				return err
			}
		}
	}
	if slices.ContainsFunc(addresses, e.Match) {
		return nil
	}
	return errors.New("no Service has the virtual address or node port " + f.VIP.String() +
		", see FRONTENDS of `sluice services`" + didYouMean(f.VIP, addresses))
}

// isNodePort reports whether e selects a node port at an address of the node. Only the gateway
// knows at which addresses it serves node ports, so isNodePort has it explain a packet to one.
func isNodePort(
	ctx context.Context, client *status.Client, e status.Endpoint, v *status.ServiceView, port netip.AddrPort,
) (bool, error) {
	if e.Prefix.Addr().Is4() != port.Addr().Is4() || e.Port != 0 && e.Port != port.Port() {
		return false, nil
	}
	if !e.Prefix.IsSingleIP() {
		return true, nil // the prefix may contain an address of the node
	}
	from := "192.0.2.1" // RFC 5737 and RFC 3849: addresses for documentation
	if e.Prefix.Addr().Is6() {
		from = "2001:db8::1"
	}
	to := netip.AddrPortFrom(e.Prefix.Addr(), port.Port()).String() + "/" + v.Protocol
	q, err := status.ParseExplain(from, to, false)
	if err != nil {
		return false, nil // an address with a zone, or a protocol that explain does not support
	}
	answer, err := client.Explain(ctx, &q)
	name, _, _ := strings.Cut(answer.Service, ":")
	return err == nil && name == v.Namespace+"/"+v.Name, err
}

// didYouMean returns a question with the address in list that is nearest to e; "" if none is near.
// The same address is near with any port.
func didYouMean(e status.Endpoint, list []netip.AddrPort) string {
	var names, ports []string
	for _, a := range list {
		if e.Port == 0 {
			names = append(names, a.Addr().String())
			continue
		}
		names = append(names, a.String())
		if e.Prefix.Contains(a.Addr()) {
			ports = append(ports, a.String())
		}
	}
	question := wording.Suggest(e.String(), names)
	if question == "" && len(ports) > 0 {
		question = "; did you mean " + slices.Min(ports) + "?"
	}
	return question
}
