package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/config"
)

// cleanupView is what the command prints.
type cleanupView struct {
	Removed []string `json:"removed"`
}

func (s *session) cleanupCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove what a daemon left on this node, when none follows",
		Long: "cleanup removes what a daemon that was killed, or that handed over, left on this node: programs,\n" +
			"maps and their pins, the host link, settings of NICs, the flow table and other files. It ends\n" +
			"every connection that was left for a next process. It refuses while a daemon runs. Give it the\n" +
			"daemon's configuration with --config if that has a stateDir, bpfFS, tuning.hostLinkName or\n" +
			"interfaces[].napi of its own. A node that is clean stays as it is.",
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
	c.Flags().StringVar(&file, "config", "", "configuration file of the daemon (default: the defaults)")
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
