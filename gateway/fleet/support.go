package fleet

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"sluice.dev/sluice/gateway/support/archive"
)

// The bounds of one gateway's archive.
const (
	supportTimeout = 3 * time.Minute
	supportBytes   = 64 << 20
)

// support writes one archive with the archive and the newest lines of the log of each gateway.
func (s *session) support(ctx context.Context, args []string) error {
	f := pflag.NewFlagSet("support", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	file := f.String("file", archive.FileName(time.Now()), "file to write")
	without := f.Bool("without-addresses", false, "replace IP and MAC addresses, and leave out BPF maps")
	profile := f.Duration("profile", 5*time.Second, "time of the CPU profile; 0s: none")
	if err := f.Parse(args); err != nil || f.NArg() > 0 {
		return fmt.Errorf("support takes only these flags:\n%s%w", f.FlagUsages(), err)
	}
	list, err := s.find(ctx)
	if err != nil {
		return err
	}
	command := []string{"support", "--file", "-", "--profile", profile.String()}
	var names *archive.Names
	if *without {
		names = archive.NewNames("") // an address has one name in the archives of all gateways
		command = append(command, "--without-addresses", "--names-key", names.Key())
	}
	index, err := archive.WriteFile(ctx, *file, s.parts(list, command), s.version, names)
	if err != nil {
		return failure{err}
	}
	fmt.Fprintf(s.out, "%s: %d gateways\n", *file, len(list))
	problems := index.Problems()
	for i := range problems {
		problems[i] = "  " + problems[i]
	}
	if len(problems) > 0 {
		return failure{fmt.Errorf("parts are not complete:\n%s", strings.Join(problems, "\n"))}
	}
	return nil
}

func (s *session) parts(list []gateway, command []string) (parts []archive.Part) {
	for i := range list {
		g := &list[i]
		parts = append(parts, archive.Part{
			Name: g.Node + ".tar.gz", Binary: true, Timeout: supportTimeout, MaxBytes: supportBytes,
			Write: func(ctx context.Context, w io.Writer) error {
				notes, err := s.kubectl.exec(ctx, g, s.container, supportTimeout, w, command)
				s.note(g.Node, notes...)
				return err
			},
		}, archive.Part{
			Name: g.Node + ".log.txt",
			Write: func(ctx context.Context, w io.Writer) error {
				_, err := s.kubectl.run(ctx, w, "logs", "--namespace", g.Namespace, g.Pod, "--container", s.container,
					"--tail=5000")
				return err
			},
		})
	}
	return parts
}
