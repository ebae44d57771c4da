package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/config/metallb"
	"sluice.dev/sluice/config/metallb/metallbflag"
)

func (s *session) fromMetalLBCommand() *cobra.Command {
	o := metallb.Options{}
	c := &cobra.Command{
		Use:   "from-metallb FILE...",
		Short: "Convert MetalLB's objects, and show which of them Sluice reads unchanged",
		Long: "from-metallb reads MetalLB's objects, and Services, and prints them as objects of sluice.dev. On\n" +
			"standard error it lists, for each object, which fields the announcer and the controller read\n" +
			"unchanged, which they do not support and what to do instead, and the address of each Service. It\n" +
			"changes nothing and needs no daemon; FILE - is standard input:\n\n" +
			"  for kind in ipaddresspools l2advertisements bgpadvertisements bgppeers bfdprofiles communities; do\n" +
			"    kubectl get $kind.metallb.io -A -o yaml; echo ---; done > metallb.yaml\n" +
			"  kubectl get services,namespaces -A -o yaml |\n" +
			"    sluice config from-metallb metallb.yaml - > sluice.yaml\n\n" +
			"With -o json or -o yaml it prints both, the objects as a string.",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return nil
			}
			return fmt.Errorf("%s takes files: %s", c.Name(), c.UseLine())
		},
		RunE: func(_ *cobra.Command, args []string) error { return s.fromMetalLB(args, o) },
	}
	c.Flags().StringVar(&o.Namespace, "namespace", "sluice-system", "namespace of sluice-announcer")
	c.Flags().StringVar(&o.MetalLB, metallbflag.Name, metallbflag.Default,
		"MetalLB's namespace; MetalLB's objects in others are ignored")
	c.Flags().StringVar(&o.Class, "class", "sluice.dev/sluice", "loadBalancerClass of the controller")
	return c
}

func (s *session) fromMetalLB(files []string, o metallb.Options) error {
	var inputs []metallb.Input
	for _, file := range files {
		data, err := readInput(file)
		if err != nil {
			return err
		}
		inputs = append(inputs, metallb.Input{Name: file, Data: data})
	}
	result, err := metallb.Convert(inputs, o)
	if err != nil {
		return err
	}
	if !s.format.text() {
		return s.print(struct {
			*metallb.Result
			Manifest string `json:"manifest"`
		}{result, string(result.YAML)}, nil)
	}
	if _, err := s.app.Out.Write(result.YAML); err != nil {
		return err
	}
	return s.printInstallation(result)
}

// printInstallation prints a report for people on standard error. Standard output has only the
// manifest.
func (s *session) printInstallation(result *metallb.Result) error {
	r := newRows(s.app.Err)
	r.row("OBJECT", "READ", "HERE")
	for _, o := range result.Objects {
		r.row(o.Object, o.AsItIs, o.Becomes)
	}
	if len(result.Services) > 0 {
		r.line("")
		r.row("SERVICE", "HAS", "GETS", "POOL")
	}
	for _, v := range result.Services {
		r.row(v.Service, v.Has, v.Gets, v.Pool)
	}
	r.line("")
	for _, o := range result.Objects {
		printNotes(r, o.Object, o.Notes)
	}
	for _, v := range result.Services {
		printNotes(r, "Service "+v.Service, v.Notes)
	}
	for _, w := range result.Warnings {
		r.line("Check: " + w + ".")
	}
	if skipped := result.SkippedText(); skipped != "" {
		r.line("Not part of MetalLB's configuration: " + skipped + ".")
	}
	return r.flush()
}

func printNotes(r *rows, about string, notes []metallb.Note) {
	for _, n := range notes {
		text := about + ": "
		if n.Field != "" {
			text += n.Field + ": "
		}
		r.line(text + n.Text)
		if n.Do != "" {
			r.line("  do: " + n.Do)
		}
	}
}
