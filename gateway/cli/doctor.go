package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/gateway/doctor"
)

func (s *session) doctorCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this host can be a gateway: kernel, drivers, offloads, capabilities, ports",
		Long: "doctor checks whether this host can be a gateway, and prints a remedy for each finding.\n" +
			"It changes nothing. If no daemon runs, pass the configuration with --config.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			facts, err := s.readFacts(c.Context(), file)
			if err != nil {
				return err
			}
			findings := doctor.Examine(facts)
			if err := s.print(findings, func(r *rows) { findingRows(r, findings) }); err != nil {
				return err
			}
			if doctor.Failed(findings) {
				return errors.New("a check failed: see the lines with level fail")
			}
			return nil
		},
	}
	c.Flags().StringVar(&file, "config", "", "configuration file (default: the running daemon's)")
	must(c.MarkFlagFilename("config", "yaml", "yml", "json"))
	return c
}

// readFacts reads the host, and whether the daemon would start with the configuration.
func (s *session) readFacts(ctx context.Context, file string) (*doctor.Facts, error) {
	facts, err := doctor.Read(ctx, file, s.socket)
	if err == nil && facts.Config != nil {
		facts.StartError = s.app.StartError(facts.Config)
	}
	return facts, err
}

func findingRows(r *rows, list []doctor.Finding) {
	r.row("LEVEL", "CHECK", "SUBJECT", "FOUND")
	for _, f := range list {
		for i, line := range strings.Split(f.Found, "\n") {
			if i == 0 {
				r.in(ofLevel(string(f.Level))).row(f.Level, f.Check, f.Subject, line)
			} else {
				r.in(ofLevel(string(f.Level))).line(fmt.Sprintf("\t\t\t%s", line))
			}
		}
		if f.Do != "" {
			r.line("\t\t\t-> " + f.Do)
		}
	}
}
