package cli

import (
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

// serviceFlag is the flag --service; the empty value selects all Services.
type serviceFlag string

// add adds the flag to a command whose session is s.
func (f *serviceFlag) add(s *session, c *cobra.Command) {
	c.Flags().Var(f, "service", "only this service: namespace/name or namespace/name:port")
	s.completeFlag(c, "service", s.serviceNames)
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

// with returns the arguments of a command, and the flag as another one.
func (f serviceFlag) with(args []string) []string {
	if f == "" {
		return args
	}
	return append(slices.Clone(args), string(f))
}

// selectsService reports whether an argument selects a service port: name or namespace/name, which
// select every port, or one of these with :port.
func selectsService(argument, namespace, name, port string) bool {
	rest, ok := strings.CutPrefix(argument, namespace+"/"+name)
	if !ok && !strings.Contains(argument, "/") {
		rest, ok = strings.CutPrefix(argument, name)
	}
	return ok && (rest == "" || port != "" && rest == ":"+port)
}

// noService returns the error about an argument that selects no service port in the list, with the
// nearest name.
func noService(argument string, list []status.ServiceView) error {
	var names []string
	for i := range list {
		v := &list[i]
		name := v.Name
		if strings.Contains(argument, "/") {
			name = v.Namespace + "/" + v.Name
		}
		names = append(names, name)
		if v.PortName != "" {
			names = append(names, name+":"+v.PortName)
		}
	}
	return fmt.Errorf("the gateway serves no Service %s, see `sluice services`%s", argument,
		wording.Suggest(argument, names))
}

// known returns an error if no service port in the list matches.
func (f serviceFlag) known(list []status.ServiceView) error {
	if f == "" || slices.ContainsFunc(list, func(v status.ServiceView) bool {
		return selectsService(string(f), v.Namespace, v.Name, v.PortName)
	}) {
		return nil
	}
	return noService(string(f), list)
}

// completionTimeout bounds how long a shell waits for the daemon.
const completionTimeout = time.Second

// completer lists the values of an argument that a running daemon or announcer knows, each with a
// description behind a tab.
type completer func(context.Context) ([]string, error)

// complete returns a ValidArgsFunction for up to most arguments; 0: any number. It offers no value
// twice.
func complete(most int, values ...completer) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(c.Context(), completionTimeout)
		defer cancel()
		var names []string
		for _, list := range values {
			more, err := list(ctx)
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			names = append(names, more...)
		}
		names = slices.DeleteFunc(names, func(name string) bool {
			value, _, _ := strings.Cut(name, "\t")
			return slices.Contains(args, value)
		})
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFlag completes a flag's values.
func (s *session) completeFlag(c *cobra.Command, flag string, values completer) {
	must(c.RegisterFlagCompletionFunc(flag, complete(0, values)))
}

// serviceNames lists the Services.
func (s *session) serviceNames(ctx context.Context) (names []string, err error) {
	err = s.ask(func(client *status.Client) error {
		list, err := client.Services(ctx)
		for i := range list {
			name := list[i].Namespace + "/" + list[i].Name
			if len(names) == 0 || !strings.HasPrefix(names[len(names)-1], name+"\t") {
				names = append(names, fmt.Sprintf("%s\t%d of %s", name, list[i].Usable,
					plural(list[i].Backends, "backend")))
			}
		}
		return err
	})
	return names, err
}

// backendAddresses lists the addresses of the backends.
func (s *session) backendAddresses(ctx context.Context) (names []string, err error) {
	err = s.ask(func(client *status.Client) error {
		list, err := client.Backends(ctx)
		for i := range list {
			names = append(names, list[i].Address.String()+"\t"+list[i].Namespace+"/"+list[i].Service)
		}
		return err
	})
	return names, err
}

// frontendAddresses lists the frontends, without node ports.
func (s *session) frontendAddresses(ctx context.Context) (names []string, err error) {
	err = s.ask(func(client *status.Client) error {
		list, err := client.Services(ctx)
		for i := range list {
			for _, f := range list[i].Frontends {
				if f.Kind != "NodePort" {
					names = append(names, f.Address+"\t"+list[i].Namespace+"/"+list[i].Name)
				}
			}
		}
		return err
	})
	return names, err
}

// deniedClients lists the denied clients.
func (s *session) deniedClients(ctx context.Context) ([]string, error) { return s.denials(ctx, "") }

// clientsOfOperator lists the clients that the operator denied.
func (s *session) clientsOfOperator(ctx context.Context) ([]string, error) {
	return s.denials(ctx, status.DeniedByOperator)
}

func (s *session) denials(ctx context.Context, from string) (names []string, err error) {
	err = s.ask(func(client *status.Client) error {
		list, err := client.Denials(ctx)
		for i := range list {
			if from == "" || list[i].From == from {
				names = append(names, clientText(list[i].Client))
			}
		}
		return err
	})
	return names, err
}
