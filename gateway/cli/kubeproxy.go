package cli

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/config/kubeproxy"
)

func (s *session) fromKubeProxyCommand() *cobra.Command {
	o := kubeproxy.Options{}
	c := &cobra.Command{
		Use:   "from-kube-proxy FILE",
		Short: "Make a configuration from kube-proxy's",
		Long: "from-kube-proxy reads a KubeProxyConfiguration, or a ConfigMap with one, and prints a\n" +
			"configuration of sluice. On standard error it lists what became of each field. It\n" +
			"changes nothing and needs no daemon; FILE - is standard input:\n\n" +
			"  kubectl -n kube-system get configmap kube-proxy -o yaml |\n" +
			"    sluice config from-kube-proxy - --interface eth0 > gateway.yaml\n\n" +
			"With -o json or -o yaml it prints what became of each field, and the configuration as a text.",
		Args: one,
		RunE: func(c *cobra.Command, args []string) error {
			o.CPUsAssumed = !c.Flags().Changed("cpus")
			return s.fromKubeProxy(args[0], o)
		},
	}
	c.Flags().StringArrayVar(&o.Interfaces, "interface", nil, "interface to forward on; repeat it for more")
	c.Flags().IntVar(&o.CPUs, "cpus", runtime.NumCPU(),
		"CPUs of a gateway node: conntrack.maxPerCore counts by them; default those of this machine")
	return c
}

// stdin is how a command line names standard input.
const stdin = "-"

func (s *session) fromKubeProxy(file string, o kubeproxy.Options) error {
	if o.CPUs < 1 {
		return usageError{fmt.Errorf("--cpus is %d, give at least 1", o.CPUs)}
	}
	data, err := readInput(file)
	if err != nil {
		return err
	}
	result, err := kubeproxy.Convert(file, data, o)
	if err != nil {
		return listed(err)
	}
	if s.format != formatTable {
		return s.print(struct {
			*kubeproxy.Result
			Configuration string `json:"configuration"`
		}{result, string(result.YAML)}, nil)
	}
	if _, err := s.app.Out.Write(result.YAML); err != nil {
		return err
	}
	return s.printFields(result, len(o.Interfaces) > 0)
}

func readInput(file string) ([]byte, error) {
	if file == stdin {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(file)
}

// printFields is for people and goes to standard error, so that standard output is
// the file and nothing else.
func (s *session) printFields(result *kubeproxy.Result, complete bool) error {
	r := newRows(s.app.Err)
	if len(result.Fields) > 0 {
		r.row("LINE", "FIELD", "VALUE", "FATE", "HERE")
	}
	for _, f := range result.Fields {
		line := ""
		if f.Line > 0 {
			line = strconv.Itoa(f.Line)
		}
		r.row(line, f.Path, f.Value, f.Fate, f.Here)
	}
	r.line("")
	r.line("Why each of them differs, or has no meaning, is in the comments of the configuration.")
	for _, n := range result.Notes {
		r.line("Note: " + n)
	}
	for _, w := range result.Warnings {
		r.line("Check: " + w)
	}
	if !complete {
		r.line("The configuration is not complete: kube-proxy has no list of interfaces. Name them in it, or with " +
			"--interface.")
	}
	return r.flush()
}
