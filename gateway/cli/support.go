package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/announce/view"
	"sluice.dev/sluice/gateway/doctor"
	"sluice.dev/sluice/gateway/support"
	"sluice.dev/sluice/gateway/support/archive"
	"sluice.dev/sluice/serve/status"
)

// announcerConfig is where the unit and the chart have the announcer's configuration.
const announcerConfig = "/etc/sluice/announce.yaml"

func (s *session) supportCommand() *cobra.Command {
	var file, configFile, key string
	var without bool
	profile := 5 * time.Second
	src := support.Source{Announcer: view.DefaultSocket, AnnouncerConfig: announcerConfig}
	c := &cobra.Command{
		Use:   "support",
		Short: "Write an archive about this gateway for support, without secrets",
		Long: "support writes a tar.gz with status, configuration, tables, BPF maps, events, facts of the kernel\n" +
			"and of the NICs, newest lines of the log, and a short CPU profile. Passwords, keys and tokens are\n" +
			"removed, packets are not in it. index.json lists all parts, and why one is missing.\n" +
			"If the gateway does not answer, the archive has the parts about the host, and the exit code is 1.",
		Example: "  sluice support\n" +
			"  sluice support --without-addresses --file - > gateway-1.tar.gz",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if profile < 0 || profile > status.MaxProfile {
				return usageError{fmt.Errorf("--profile is %v: give a time from 0s to %v", profile, status.MaxProfile)}
			}
			src.Client, src.Profile = status.NewClient(s.socket), profile
			src.Facts = func(ctx context.Context) (*doctor.Facts, error) { return s.readFacts(ctx, configFile) }
			var names *archive.Names
			if without {
				names = archive.NewNames(key)
			}
			return s.support(c.Context(), &src, file, names)
		},
	}
	f := c.Flags()
	f.StringVar(&file, "file", "", "file to write; -: standard output (default: sluice-support-TIME.tar.gz)")
	f.BoolVar(&without, "without-addresses", false,
		"replace IP and MAC addresses, each by the same name everywhere, and leave out BPF maps")
	f.StringVar(&key, "names-key", "",
		"with --without-addresses: archives with the same key have the same names (default: random)")
	f.DurationVar(&profile, "profile", profile, "time of the CPU profile; 0s: none")
	f.StringVar(&configFile, "config", "", "configuration file (default: the running daemon's)")
	f.StringVar(&src.Announcer, "announcer", src.Announcer, "socket of the announcer: status.sock in its --state-dir")
	must(c.MarkFlagFilename("file", "tar.gz"))
	must(c.MarkFlagFilename("config", "yaml", "yml", "json"))
	return c
}

func (s *session) support(ctx context.Context, src *support.Source, file string, names *archive.Names) error {
	version := status.ThisBuild().String()
	var index *archive.Index
	var err error
	if file == "-" {
		index, err = archive.Write(ctx, s.app.Out, src.Parts(), version, names)
	} else {
		file = cmp.Or(file, archive.FileName(time.Now()))
		index, err = archive.WriteFile(ctx, file, src.Parts(), version, names)
	}
	if err != nil {
		return err
	}
	for _, problem := range index.Problems() {
		fmt.Fprintln(s.app.Err, oneLine(problem))
	}
	failed := index.Failed()
	if file != "-" {
		_, err = fmt.Fprintf(s.app.Out, "%s: %d of %d parts\n", file, len(index.Parts)-len(failed), len(index.Parts))
	}
	for _, e := range failed {
		if e.Name == support.StatusPart {
			err = errors.Join(err, errors.New("the archive has nothing of the gateway itself: "+e.Error))
		}
	}
	return err
}
