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
		Short: "Convert kube-proxy's configuration",
		Long: "from-kube-proxy reads a KubeProxyConfiguration, or a ConfigMap with one, and prints a\n" +
			"configuration for sluice. On standard error it lists how each field was converted. It\n" +
			"changes nothing and needs no daemon; FILE - is standard input:\n\n" +
			"  kubectl -n kube-system get configmap kube-proxy -o yaml |\n" +
			"    sluice config from-kube-proxy - --interface eth0 > gateway.yaml\n\n" +
			"With -o json or -o yaml it prints how each field was converted, and the configuration as a string.",
		Args: one,
		RunE: func(c *cobra.Command, args []string) error {
			o.CPUsAssumed = !c.Flags().Changed("cpus")
			return s.fromKubeProxy(args[0], o)
		},
	}
	c.Flags().StringArrayVar(&o.Interfaces, "interface", nil, "interface to forward on; repeat it for more")
	c.Flags().IntVar(&o.CPUs, "cpus", runtime.NumCPU(),
		"number of CPUs of a gateway node, for conntrack.maxPerCore")
	c.Flag("cpus").DefValue = "the CPUs of this host"
	return c
}

// stdin is the file name that stands for standard input.
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
	if !s.format.text() {
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

// printFields prints a report for people on standard error. Standard output has only the file.
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
	r.line("The comments in the configuration give the reason for each field that differs or is ignored.")
	for _, n := range result.Notes {
		r.line("Note: " + n)
	}
	for _, w := range result.Warnings {
		r.line("Check: " + w)
	}
	if !complete {
		r.line("The configuration is not complete: kube-proxy has no list of interfaces. Add them to it, or give " +
			"--interface.")
	}
	return r.flush()
}
