package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/config"
)

// cleanupView is the command's output.
type cleanupView struct {
	Removed []string `json:"removed"`
}

func (s *session) cleanupCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything that a stopped daemon left on this node",
		Long: "cleanup removes what a killed daemon, or one with drain.handOver, left on this node: XDP programs,\n" +
			"maps and their pins, the host link, settings of NICs, the flow table and other files. It closes\n" +
			"every connection that the next daemon would have continued. It fails while a daemon runs. Pass the\n" +
			"daemon's configuration with --config if it sets stateDir, bpfFS, tuning.hostLinkName or\n" +
			"interfaces[].napi. On a clean node it changes nothing.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			cfg := config.Default()
			if file != "" {
				var err error
				if cfg, err = config.Load(file); err != nil {
					return listed(err)
				}
			}
			removed, err := s.app.Cleanup(cfg)
			v := cleanupView{Removed: append([]string{}, removed...)}
			return errors.Join(s.print(v, func(r *rows) { cleanupRows(r, &v, err) }), err)
		},
	}
	c.Flags().StringVar(&file, "config", "", "configuration file of the daemon (without it: the default values)")
	must(c.MarkFlagFilename("config", "yaml", "yml", "json"))
	return c
}

func cleanupRows(r *rows, v *cleanupView, err error) {
	for _, what := range v.Removed {
		r.line("removed: " + what)
	}
	if len(v.Removed) == 0 && err == nil {
		r.line("The node is clean; nothing was removed.")
	}
}
