package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/internal/usage"
	"sluice.dev/sluice/internal/wording"
)

// defaultSelector are labels of the chart's gateways.
const defaultSelector = "app.kubernetes.io/name=sluice"

// commands are the commands that a fleet has.
var commands = []string{"status", "services", "backends", "flows", "drops", "who", "explain", "events", "stats", "deny",
	"drain", "undrain", "doctor", "announce", "version"}

// session is one execution of a command line.
type session struct {
	version             string
	kubectl             kubectl
	namespace, selector string
	context, kubeconfig string
	container           string
	timeout             time.Duration
	out, errs           io.Writer
}

// Main executes one command line of kubectl sluice and returns the exit code (usage.ExitCodes).
func Main(ctx context.Context, version string, args []string, out, errs io.Writer) int {
	s := &session{version: version, kubectl: kubectl{program: "kubectl", most: maxAnswerBytes}, out: out, errs: errs}
	root := s.root()
	root.SetArgs(append([]string{}, args...))
	root.SetOut(out)
	root.SetErr(errs)
	err := root.ExecuteContext(ctx)
	var failed failure
	switch {
	case err == nil:
		return usage.OK
	case errors.Is(err, errNone):
		fmt.Fprintln(errs, "kubectl sluice:", err)
		return usage.Findings
	case errors.As(err, &failed):
		fmt.Fprintln(errs, "kubectl sluice:", objects.Printable(err.Error(), '\n'))
		return usage.Failure
	}
	fmt.Fprintln(errs, "kubectl sluice:", objects.Printable(err.Error(), '\n'))
	return usage.Wrong
}

// failure is an error other than wrong usage.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// Command returns the command line, for its manual page.
func Command() *cobra.Command { return new(session).root() }

func (s *session) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-sluice [flags] COMMAND [arguments of sluice COMMAND]",
		Short: "Run a command of sluice on all gateways of a cluster",
		Long: "kubectl sluice runs a command of sluice in the pods of all gateways at once, by kubectl exec, and\n" +
			"merges the answers, with a column for the gateway. It needs the rights to list pods and to create\n" +
			"pods/exec. A gateway that does not answer is named, and the exit status is then 1.\n\n" +
			"Commands: " + strings.Join(commands[:9], ", ") + ",\n" + strings.Join(commands[9:], ", ") +
			", support.\nFlags of kubectl sluice come before the command.",
		Example: "  kubectl sluice status\n" +
			"  kubectl sluice flows --client 198.51.100.7\n" +
			"  kubectl sluice deny 192.0.2.0/24 --for 1h\n" +
			"  kubectl sluice --namespace sluice-system services demo/echo -o json\n" +
			"  kubectl sluice support --without-addresses",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl sluice"},
		SilenceErrors: true, SilenceUsage: true, DisableAutoGenTag: true,
		Version: s.version,
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			if args[0] == "support" {
				return s.support(c.Context(), args[1:])
			}
			return s.run(c.Context(), args)
		},
	}
	f := root.Flags()
	f.SetInterspersed(false)
	f.StringVarP(&s.namespace, "namespace", "n", "", "namespace of the gateways (default: the only one that has any)")
	f.StringVarP(&s.selector, "selector", "l", defaultSelector, "labels of the gateways' pods")
	f.StringVar(&s.container, "container", "sluice", "container of the gateway in its pod")
	f.StringVar(&s.context, "context", "", "context of the kubeconfig")
	f.StringVar(&s.kubeconfig, "kubeconfig", "", "kubeconfig file")
	f.DurationVar(&s.timeout, "timeout", 30*time.Second, "how long to wait for a gateway")
	root.CompletionOptions.DisableDefaultCmd = true
	usage.Suggest(root)
	return root
}

// find lists the gateways.
func (s *session) find(ctx context.Context) ([]gateway, error) {
	if s.context != "" {
		s.kubectl.global = append(s.kubectl.global, "--context="+s.context)
	}
	if s.kubeconfig != "" {
		s.kubectl.global = append(s.kubectl.global, "--kubeconfig="+s.kubeconfig)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("no answer within %v", s.timeout))
	defer cancel()
	list, err := s.kubectl.gateways(ctx, s.namespace, s.selector)
	if err != nil {
		return nil, failure{err}
	}
	for i := range list {
		if g := &list[i]; len(g.Others) > 0 {
			s.note(g.Node, fmt.Sprintf("pod %s is asked, not %s", g.Pod, strings.Join(g.Others, ", ")))
		}
	}
	return list, nil
}

// run runs a command on all gateways and prints the answers.
func (s *session) run(ctx context.Context, args []string) error {
	if !slices.Contains(commands, args[0]) {
		return fmt.Errorf("%s is no command for all gateways: %s and support are; run others in one pod, by "+
			"kubectl exec%s", args[0], strings.Join(commands, ", "),
			wording.Suggest(args[0], append(slices.Clone(commands), "support")))
	}
	for _, a := range args[1:] {
		if a == "-w" || a == "--watch" || strings.HasPrefix(a, "--watch=") || a == "-f" || a == "--follow" {
			return fmt.Errorf("%s has no end, and answers are merged at their end: run it in one pod, by kubectl exec",
				a)
		}
	}
	format, args, err := outputFormat(args)
	if err != nil {
		return err
	}
	list, err := s.find(ctx)
	if err != nil {
		return err
	}
	remote := format
	if format == "yaml" {
		remote = "json"
	}
	answers := s.kubectl.ask(ctx, list, s.container, s.timeout, append(slices.Clone(args), "-o", remote))
	if format == "json" || format == "yaml" {
		err = printObjects(s.out, format, answers)
	} else {
		err = printText(s.out, answers)
	}
	if err != nil {
		return failure{err}
	}
	for i := range answers {
		s.note(answers[i].Node, answers[i].notes...)
	}
	return s.failed(answers)
}

// note prints notes about a gateway.
func (s *session) note(node string, notes ...string) {
	for _, n := range notes {
		fmt.Fprintln(s.errs, objects.Printable(node+": "+n))
	}
}

// errNone is the result of a command that has found nothing on any gateway.
var errNone = errors.New("no gateway had a flow with this source at that time")

// failed returns an error that names the gateways without a good answer. One gateway that has found
// something is enough.
func (s *session) failed(answers []answer) error {
	var bad []string
	none := 0
	for i := range answers {
		a := &answers[i]
		if a.err != nil {
			bad = append(bad, fmt.Sprintf("  %s: %v", a.Node, a.err))
		}
		if a.none {
			none++
		}
	}
	if none == len(answers) {
		return failure{errNone}
	}
	if len(bad) == 0 {
		return nil
	}
	return failure{fmt.Errorf("%d of %d gateways failed:\n%s", len(bad), len(answers), strings.Join(bad, "\n"))}
}

// outputFormat takes the flag -o out of the arguments of a command.
func outputFormat(args []string) (format string, rest []string, err error) {
	format = "table"
	for i := 0; i < len(args); i++ {
		a := args[i]
		value, joined := "", false
		switch {
		case a == "-o" || a == "--output":
			if i++; i == len(args) {
				return "", nil, fmt.Errorf("%s needs a format: table, wide, json or yaml", a)
			}
			value, joined = args[i], true
		case strings.HasPrefix(a, "--output="):
			value, joined = strings.TrimPrefix(a, "--output="), true
		case strings.HasPrefix(a, "-o"):
			value, joined = strings.TrimPrefix(strings.TrimPrefix(a, "-o"), "="), true
		}
		if !joined {
			rest = append(rest, a)
			continue
		}
		if formats := []string{"table", "wide", "json", "yaml"}; !slices.Contains(formats, value) {
			return "", nil, fmt.Errorf("-o %s: must be table, wide, json or yaml%s", value,
				wording.Suggest(value, formats))
		}
		format = value
	}
	return format, rest, nil
}
