package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/table"
	"sluice.dev/sluice/serve/status"
)

func (s *session) servicesCommand() *cobra.Command {
	var only serviceFlag
	c := &cobra.Command{
		Use:     "services [NAME...]",
		Aliases: []string{"service", "svc"},
		Short:   "List the service ports that the gateway serves",
		Long: "services lists the service ports that the gateway serves, or some of them: NAME, NAMESPACE/NAME, or\n" +
			"either with :PORT. Ports without a usable backend come first. CREATED,\n" +
			"PACKETS and BYTES count since the daemon's start; `sluice flows --service NAMESPACE/NAME --count`\n" +
			"prints the present number of flows.",
		Example: "  sluice services web\n" +
			"  sluice services --rate --watch --sort bytes-out\n" +
			"  sluice services shop/web -o wide",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: complete(0, s.serviceNames),
	}
	var list *listing[status.ServiceView]
	var times *timesFlags
	c.RunE = func(c *cobra.Command, args []string) error {
		return s.ask(func(client *status.Client) error {
			ask := func() ([]status.ServiceView, error) { return s.services(c.Context(), client, only.with(args)) }
			if times.chosen {
				return showTimes(c.Context(), client, times, list, ask, serviceTimesTable(),
					func(all *status.AllTimesView) []status.ServiceTimesView { return all.Services })
			}
			return list.show(c.Context(), ask)
		})
	}
	list = newListing(s, c, serviceTable(), serviceTimesTable().Names()...)
	times = newTimesFlags(c)
	only.add(s, c)
	return c
}

// services returns the service ports that arguments select by name.
func (s *session) services(ctx context.Context, client *status.Client, args []string) ([]status.ServiceView, error) {
	all, err := client.Services(ctx)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 && len(args) == 0 {
		s.note("The gateway serves no Service.")
	}
	return choose(all, args, func(v *status.ServiceView, name string) bool {
		return selectsService(name, v.Namespace, v.Name, v.PortName)
	}, func(name string) error { return noService(name, all) })
}

// serviceTable describes the list of service ports.
func serviceTable() *table.Table[status.ServiceView] {
	type view = status.ServiceView
	return &table.Table[view]{
		Key:    func(v *view) string { return servicePortKey(v.Namespace, v.Name, v.PortName, v.Port, v.Protocol) },
		Urgent: func(v *view) bool { return v.Usable == 0 },
		Columns: []table.Column[view]{
			{Name: "NAMESPACE", Text: func(v *view) string { return v.Namespace }},
			{Name: "NAME", Text: func(v *view) string { return v.Name }},
			{Name: "PORT", Text: func(v *view) string { return servicePort(v.PortName, v.Port, v.Protocol) }},
			{Name: "BACKENDS", Text: func(v *view) string { return fmt.Sprintf("%d/%d", v.Usable, v.Backends) },
				Number: func(v *view) (float64, bool) { return float64(v.Backends), true }},
			{Name: "POLICY", Show: table.Wide, Text: policy},
			{Name: "PROXY", Show: table.Wide, Text: func(v *view) string { return v.ProxyProtocol }},
			{Name: "SCHEDULER", Show: table.Wide, Text: func(v *view) string { return v.Scheduler }},
			{Name: "AFFINITY", Show: table.Wide, Text: func(v *view) string { return affinity(v.AffinitySeconds) }},
			{Name: "LIMITS", Show: table.Wide, Text: func(v *view) string { return limits(v.Limits) }},
			{Name: "CREATED", Counter: func(v *view) *uint64 { return &v.Traffic.Flows }},
			{Name: "PACKETS-IN", Show: table.Wide, Counter: func(v *view) *uint64 { return &v.Traffic.ToBackend }},
			{Name: "BYTES-IN", Show: table.Rates, Bytes: true,
				Counter: func(v *view) *uint64 { return &v.Traffic.ToBackendBytes }},
			{Name: "PACKETS-OUT", Show: table.Wide, Counter: func(v *view) *uint64 { return &v.Traffic.ToClient }},
			{Name: "BYTES-OUT", Show: table.Rates, Bytes: true,
				Counter: func(v *view) *uint64 { return &v.Traffic.ToClientBytes }},
			{Name: "FRONTENDS", Show: table.Short, Text: func(v *view) string {
				list := frontends(v)
				if len(list) < 2 {
					return strings.Join(list, "")
				}
				return fmt.Sprintf("%s,+%d", list[0], len(list)-1)
			}},
			{Name: "FRONTENDS", Show: table.Wide, Text: func(v *view) string {
				return strings.Join(frontends(v), ",")
			}},
		},
	}
}

// frontends lists the frontends' addresses: load balancers first, node ports last.
func frontends(v *status.ServiceView) []string {
	order := []string{"LoadBalancer", "ExternalIP", "ClusterIP", "NodePort"}
	list := slices.Clone(v.Frontends)
	slices.SortStableFunc(list, func(a, b status.FrontendView) int {
		return cmp.Compare(slices.Index(order, a.Kind), slices.Index(order, b.Kind))
	})
	addresses := make([]string, len(list))
	for i := range list {
		addresses[i] = list[i].Address
	}
	return addresses
}

// policy prints the external traffic policy, and direct for direct return.
func policy(v *status.ServiceView) string {
	if v.Forwarding == "" {
		return v.ExternalPolicy
	}
	return v.ExternalPolicy + "," + v.Forwarding
}

// affinity prints the time for which a client keeps its backend.
func affinity(seconds uint32) string {
	if seconds == 0 {
		return "-"
	}
	return (time.Duration(seconds) * time.Second).String()
}

// limits prints the open connections of a service port with their limit, and its other limits:
// connections of one source, and new connections a second.
func limits(v *status.LimitsView) string {
	if v == nil {
		return "-"
	}
	text := fmt.Sprintf("open=%d", v.Open)
	if v.Connections != 0 {
		text += fmt.Sprintf("/%d", v.Connections)
	}
	for _, l := range []struct {
		limit uint32
		form  string
	}{
		{v.SourceConnections, ",source=%d"}, {v.NewConnections, ",new=%d/s"},
		{v.SourceNewConnections, ",source-new=%d/s"},
	} {
		if l.limit != 0 {
			text += fmt.Sprintf(l.form, l.limit)
		}
	}
	return text
}

// newFlows prints whether a backend gets new flows, in one word. -o json has the reason if not.
func newFlows(v *status.BackendView) string {
	switch {
	case v.PodsOnly:
		return "pods"
	case v.NewFlows:
		return "yes"
	}
	return "no"
}

// servicePort prints a port as kubectl does, with its name if it has one.
func servicePort(name string, port uint16, protocol string) string {
	if name != "" {
		return fmt.Sprintf("%s:%d/%s", name, port, protocol)
	}
	return fmt.Sprintf("%d/%s", port, protocol)
}

// servicePortKey is a table's Key of a service port.
func servicePortKey(namespace, service, portName string, port uint16, protocol string) string {
	return namespace + "/" + service + ":" + servicePort(portName, port, protocol)
}

func (s *session) backendsCommand() *cobra.Command {
	var only serviceFlag
	c := &cobra.Command{
		Use:     "backends [NAME|ADDRESS...]",
		Aliases: []string{"backend", "endpoints"},
		Short:   "List the endpoints, their state and their traffic",
		Long: "backends lists the endpoints, or some of them: of a Service (NAME, NAMESPACE/NAME, or either with\n" +
			":PORT), or with an address (ADDRESS, ADDRESS:PORT or a prefix). Endpoints that are down or get no\n" +
			"new flows come first. CONNS is the number of connections that are open now. CREATED is the number\n" +
			"of flows that were created; it, PACKETS and BYTES count since the daemon's start.",
		Example: "  sluice backends web\n" +
			"  sluice backends 10.0.1.12 -o wide\n" +
			"  sluice backends --sort conns --watch",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: complete(0, s.serviceNames, s.backendAddresses),
	}
	var list *listing[status.BackendView]
	var times *timesFlags
	c.RunE = func(c *cobra.Command, args []string) error {
		return s.ask(func(client *status.Client) error {
			ask := func() ([]status.BackendView, error) { return s.backends(c.Context(), client, only.with(args)) }
			if times.chosen {
				return showTimes(c.Context(), client, times, list, ask, backendTimesTable(),
					func(all *status.AllTimesView) []status.BackendTimesView { return all.Backends })
			}
			return list.show(c.Context(), ask)
		})
	}
	list = newListing(s, c, backendTable(), backendTimesTable().Names()...)
	times = newTimesFlags(c)
	only.add(s, c)
	return c
}

// backends returns the backends that arguments select: names of Services, and addresses.
func (s *session) backends(ctx context.Context, client *status.Client, args []string) ([]status.BackendView, error) {
	all, err := client.Backends(ctx)
	if err != nil {
		return nil, err
	}
	var unknown error
	list, err := choose(all, args, func(v *status.BackendView, argument string) bool {
		e, err := status.ParseEndpoint(argument)
		return err == nil && e.Match(v.Address) ||
			err != nil && selectsService(argument, v.Namespace, v.Service, v.PortName)
	}, func(argument string) error {
		if e, err := status.ParseEndpoint(argument); err == nil {
			return checkBackend(e, all)
		}
		services, err := client.Services(ctx)
		if err != nil {
			unknown = err
			return err
		}
		err = serviceFlag(argument).known(services)
		if err == nil {
			s.note("Service " + argument + " has no endpoints.")
		}
		return err
	})
	if err := cmp.Or(unknown, err); err != nil {
		return nil, err
	}
	if len(args) == 0 && len(list) == 0 {
		s.note("No Service of the gateway has endpoints: `sluice services` lists the Services.")
	}
	return list, nil
}

// backendTable describes the list of endpoints.
func backendTable() *table.Table[status.BackendView] {
	type view = status.BackendView
	return &table.Table[view]{
		Key: func(v *view) string {
			return servicePortKey(v.Namespace, v.Service, v.PortName, v.Port, v.Protocol) + " " + v.Address.String()
		},
		Urgent: func(v *view) bool { return !v.NewFlows || v.Health != nil && v.Health.Down },
		Columns: []table.Column[view]{
			{Name: "NAMESPACE", Text: func(v *view) string { return v.Namespace }},
			{Name: "SERVICE", Text: func(v *view) string { return v.Service }},
			{Name: "PORT", Show: table.Wide, Text: func(v *view) string {
				return servicePort(v.PortName, v.Port, v.Protocol)
			}},
			{Name: "BACKEND", Text: func(v *view) string { return v.Address.String() }},
			{Name: "STATE", Show: table.Plain, Text: backendState},
			{Name: "WEIGHT", Show: table.Wide, Text: func(v *view) string { return strconv.Itoa(int(v.Weight)) },
				Number: func(v *view) (float64, bool) { return float64(v.Weight), true }},
			{Name: "NEW-FLOWS", Show: table.Plain, Text: newFlows},
			{Name: "NEXT-HOP", Show: table.Wide, Text: func(v *view) string { return v.NextHop }},
			{Name: "CONNS", Text: func(v *view) string { return strconv.Itoa(int(v.Connections)) },
				Number: func(v *view) (float64, bool) { return float64(v.Connections), true }},
			{Name: "CREATED", Show: table.Wide, Counter: func(v *view) *uint64 { return &v.Traffic.Flows }},
			{Name: "PACKETS-IN", Show: table.Wide, Counter: func(v *view) *uint64 { return &v.Traffic.ToBackend }},
			{Name: "BYTES-IN", Show: table.Rates, Bytes: true,
				Counter: func(v *view) *uint64 { return &v.Traffic.ToBackendBytes }},
			{Name: "PACKETS-OUT", Show: table.Wide, Counter: func(v *view) *uint64 { return &v.Traffic.ToClient }},
			{Name: "BYTES-OUT", Show: table.Rates, Bytes: true,
				Counter: func(v *view) *uint64 { return &v.Traffic.ToClientBytes }},
			{Name: "HEALTH", Show: table.Short, Text: shortHealth},
			{Name: "HEALTH", Show: table.Wide, Text: health},
		},
	}
}

// backendState prints the state of a backend, and whether it is on this node.
func backendState(v *status.BackendView) string {
	if v.Local {
		return v.State + ",local"
	}
	return v.State
}

// shortHealth prints the result of health checks in a word.
func shortHealth(v *status.BackendView) string {
	switch h := v.Health; {
	case h == nil:
		return "-"
	case h.Down:
		return "DOWN"
	case h.SlowStart > 0:
		return fmt.Sprintf("up %d%%", h.SlowStart)
	}
	return "up"
}

// health prints the result of health checks: up or DOWN and since when, the check, and its last
// result.
func health(v *status.BackendView) string {
	h := v.Health
	if h == nil {
		return "-"
	}
	check := h.Check
	if h.Passive {
		check += " (passive)"
	}
	text := fmt.Sprintf("%s since %s, %s", shortHealth(v), h.Since.UTC().Format(time.TimeOnly), check)
	if !h.At.IsZero() {
		text += fmt.Sprintf(": %s at %s", h.Last, h.At.UTC().Format(time.TimeOnly))
	}
	return text
}

func (s *session) drainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "drain BACKEND",
		Short: "Give a backend no new flows; its open flows continue",
		Long: "drain gives a backend (an address or address:port) no new flows; its open flows continue.\n" +
			"`sluice backends` shows it as drained; `sluice undrain` ends the drain. A drain stays in\n" +
			"force when the daemon restarts.",
		Args:              one,
		ValidArgsFunction: complete(1, s.backendAddresses),
		RunE:              func(c *cobra.Command, args []string) error { return s.drain(c, args[0], true) },
	}
}

func (s *session) undrainCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "undrain BACKEND",
		Short:             "Give a drained backend new flows again",
		Args:              one,
		ValidArgsFunction: complete(1, s.backendAddresses),
		RunE:              func(c *cobra.Command, args []string) error { return s.drain(c, args[0], false) },
	}
}

func (s *session) drain(c *cobra.Command, backend string, on bool) error {
	e, err := status.ParseEndpoint(backend)
	if err != nil {
		return usageError{err}
	}
	return s.ask(func(client *status.Client) error {
		list, err := client.Backends(c.Context())
		if err != nil {
			return err
		}
		n, err := client.Drain(c.Context(), e, on)
		if err != nil {
			return cmp.Or(checkBackend(e, list), err)
		}
		of := servicesOf(list, e)
		get := "get"
		if n == 1 {
			get = "gets"
		}
		return s.print(status.Count{Count: n}, func(r *rows) {
			if on {
				r.line(fmt.Sprintf("%s: %s%s %s no new flows; `sluice flows --backend %s` lists the open ones",
					e, plural(n, "backend"), of, get, e))
			} else {
				r.line(fmt.Sprintf("%s: %s%s %s new flows again", e, plural(n, "backend"), of, get))
			}
		})
	})
}

// servicesOf returns the names of the Services that have an endpoint, at most a few, so that the
// operator sees which are affected; "" if there are none.
func servicesOf(list []status.BackendView, e status.Endpoint) string {
	const most = 8
	var names []string
	for i := range list {
		if v := &list[i]; e.Match(v.Address) {
			names = append(names, v.Namespace+"/"+v.Service)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if more := len(names) - most; more > 0 {
		names = append(names[:most], fmt.Sprintf("%d more Services", more))
	}
	if len(names) == 0 {
		return ""
	}
	return " of " + strings.Join(names, ", ")
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
