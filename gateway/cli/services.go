package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/wording"
	"sluice.dev/sluice/serve/status"
)

func (s *session) servicesCommand() *cobra.Command {
	var only serviceFlag
	c := &cobra.Command{
		Use:     "services",
		Aliases: []string{"service", "svc"},
		Short:   "List the service ports that the gateway serves",
		Long: "services lists the service ports that the gateway serves. CREATED and the columns after it count\n" +
			"since the daemon's start; `sluice flows --service NAMESPACE/NAME --count` prints the present number\n" +
			"of flows.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return s.ask(func(client *status.Client) error {
				list, err := client.Services(c.Context())
				if err != nil {
					return err
				}
				list = slices.DeleteFunc(list, func(v status.ServiceView) bool {
					return !only.selects(v.Namespace,
						v.Name, v.PortName)
				})
				if err := only.check(c.Context(), client, len(list)); err != nil {
					return err
				}
				if len(list) == 0 {
					s.note("The gateway serves no Service.")
				}
				return s.print(list, func(r *rows) { serviceRows(r, list) })
			})
		},
	}
	only.add(c)
	return c
}

// serviceFlag is the flag --service; the empty value selects all Services.
type serviceFlag string

func (f *serviceFlag) add(c *cobra.Command) {
	c.Flags().Var(f, "service", "only this service: namespace/name or namespace/name:port")
}

// String, Set and Type implement pflag.Value.
func (f *serviceFlag) String() string { return string(*f) }

// Type names the flag's values in help.
func (f *serviceFlag) Type() string { return "service" }

// Set returns an error for a text that cannot name a service.
func (f *serviceFlag) Set(s string) error {
	if namespace, name, ok := strings.Cut(s, "/"); !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return errors.New("write namespace/name or namespace/name:port")
	}
	*f = serviceFlag(s)
	return nil
}

// selects reports whether the flag selects a service port. Without a port it selects every port of
// the Service.
func (f serviceFlag) selects(namespace, name, port string) bool {
	rest, ok := strings.CutPrefix(string(f), namespace+"/"+name)
	return f == "" || ok && (rest == "" || port != "" && rest == ":"+port)
}

// check returns an error if no row was selected because the gateway does not serve the service
// port: an empty result would look like a Service without endpoints or flows.
func (f serviceFlag) check(ctx context.Context, client *status.Client, selected int) error {
	if f == "" || selected > 0 {
		return nil
	}
	list, err := client.Services(ctx)
	if err != nil {
		return err
	}
	return f.known(list)
}

// known returns an error if no service port in the list matches.
func (f serviceFlag) known(list []status.ServiceView) error {
	if f == "" {
		return nil
	}
	var names []string
	for i := range list {
		v := &list[i]
		if f.selects(v.Namespace, v.Name, v.PortName) {
			return nil
		}
		name := v.Namespace + "/" + v.Name
		names = append(names, name)
		if v.PortName != "" {
			names = append(names, name+":"+v.PortName)
		}
	}
	return fmt.Errorf("the gateway serves no Service %s, see `sluice services`%s", string(f),
		wording.Suggest(string(f), names))
}

func serviceRows(r *rows, list []status.ServiceView) {
	r.row("NAMESPACE", "NAME", "PORT", "FRONTENDS", "POLICY", "PROXY", "SCHEDULER", "AFFINITY", "LIMITS", "BACKENDS",
		"CREATED", "PACKETS-IN", "BYTES-IN", "PACKETS-OUT", "BYTES-OUT")
	for i := range list {
		v := &list[i]
		frontends := make([]string, len(v.Frontends))
		for j, f := range v.Frontends {
			frontends[j] = f.Address
		}
		r.row(v.Namespace, v.Name, servicePort(v.PortName, v.Port, v.Protocol), strings.Join(frontends, ","),
			policy(v), v.ProxyProtocol, v.Scheduler, affinity(v.AffinitySeconds), limits(v.Limits),
			fmt.Sprintf("%d/%d", v.Usable, v.Backends),
			v.Traffic.Flows,
			v.Traffic.ToBackend, byteCount(v.Traffic.ToBackendBytes), v.Traffic.ToClient,
			byteCount(v.Traffic.ToClientBytes))
	}
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

func (s *session) backendsCommand() *cobra.Command {
	var only serviceFlag
	c := &cobra.Command{
		Use:     "backends",
		Aliases: []string{"backend", "endpoints"},
		Short:   "List the endpoints, their state and their traffic",
		Long: "backends lists the endpoints. CONNS is the number of connections that are open now. CREATED is the\n" +
			"number of flows that were created; it and the columns after it count since the daemon's start.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return s.ask(func(client *status.Client) error {
				list, err := client.Backends(c.Context())
				if err != nil {
					return err
				}
				list = slices.DeleteFunc(list, func(v status.BackendView) bool {
					return !only.selects(v.Namespace,
						v.Service, v.PortName)
				})
				if err := only.check(c.Context(), client, len(list)); err != nil {
					return err
				}
				switch {
				case len(list) > 0:
				case only == "":
					s.note("No Service of the gateway has endpoints: `sluice services` lists the Services.")
				default:
					s.note("Service " + string(only) + " has no endpoints.")
				}
				return s.print(list, func(r *rows) { backendRows(r, list) })
			})
		},
	}
	only.add(c)
	return c
}

func backendRows(r *rows, list []status.BackendView) {
	r.row("NAMESPACE", "SERVICE", "PORT", "BACKEND", "STATE", "WEIGHT", "NEW-FLOWS", "NEXT-HOP", "CONNS",
		"CREATED", "PACKETS-IN", "BYTES-IN", "PACKETS-OUT", "BYTES-OUT", "HEALTH")
	for i := range list {
		v := &list[i]
		state := v.State
		if v.Local {
			state += ",local"
		}
		r.row(v.Namespace, v.Service, servicePort(v.PortName, v.Port, v.Protocol), v.Address, state,
			v.Weight, newFlows(v), v.NextHop, v.Connections, v.Traffic.Flows,
			v.Traffic.ToBackend, byteCount(v.Traffic.ToBackendBytes), v.Traffic.ToClient,
			byteCount(v.Traffic.ToClientBytes), health(v))
	}
}

// health prints the result of health checks: up or DOWN and since when, the check, and its last
// result.
func health(v *status.BackendView) string {
	h := v.Health
	if h == nil {
		return "-"
	}
	state := "up"
	switch {
	case h.Down:
		state = "DOWN"
	case h.SlowStart > 0:
		state = fmt.Sprintf("up %d%%", h.SlowStart)
	}
	check := h.Check
	if h.Passive {
		check += " (passive)"
	}
	text := fmt.Sprintf("%s since %s, %s", state, h.Since.UTC().Format(time.TimeOnly), check)
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
		ValidArgsFunction: s.completeBackend,
		RunE:              func(c *cobra.Command, args []string) error { return s.drain(c, args[0], true) },
	}
}

func (s *session) undrainCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "undrain BACKEND",
		Short:             "Give a drained backend new flows again",
		Args:              one,
		ValidArgsFunction: s.completeBackend,
		RunE:              func(c *cobra.Command, args []string) error { return s.drain(c, args[0], false) },
	}
}

// completeBackend completes the addresses of the daemon's backends.
func (s *session) completeBackend(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(c.Context(), time.Second)
	defer cancel()
	var names []string
	err := s.ask(func(client *status.Client) error {
		list, err := client.Backends(ctx)
		for i := range list {
			names = append(names, list[i].Address.String()+"\t"+list[i].Namespace+"/"+list[i].Service)
		}
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return names, cobra.ShellCompDirectiveNoFileComp
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
