package cli

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/announce/view"
	"sluice.dev/sluice/gateway/cli/top"
	"sluice.dev/sluice/internal/usage"
	"sluice.dev/sluice/serve/status"
)

// topEvery is the interval of top without --every.
const topEvery = time.Second

func (s *session) topCommand() *cobra.Command {
	every := intervalFlag(topEvery)
	announcer := view.DefaultSocket
	c := &cobra.Command{
		Use:   "top",
		Short: "Show the gateway live, on the whole terminal",
		Long: "top lists the node, Services, backends, clients, drops, workers and routes of VIPs, read again each\n" +
			"second. `?` lists its keys. It needs a terminal, changes nothing, and obeys NO_COLOR. Scripts use " +
			"--watch and -o json of the other commands.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !s.format.text() {
				return usageError{errors.New("top is for a terminal: `sluice services -o json`, `backends`, `stats` and " +
					"`status` print the same for programs, with --watch again and again")}
			}
			if !usage.IsTerminal(s.app.Out) {
				return usageError{errors.New("top needs a terminal, and standard output is none: use " +
					"`sluice services --watch`, or -o json for programs (kubectl exec needs -it)")}
			}
			return s.top(c.Context(), time.Duration(every), announcer)
		},
	}
	c.Flags().Var(&every, "every", "read the list on the screen each interval")
	c.Flags().StringVar(&announcer, "announcer", announcer, "socket of the announcer: status.sock in its --state-dir")
	return c
}

func (s *session) top(ctx context.Context, every time.Duration, announcer string) error {
	client := status.NewClient(s.socket)
	if _, err := client.Status(ctx, false); err != nil {
		return err // before the terminal changes
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	screen, err := top.NewTerminal()
	if err != nil {
		return err
	}
	defer screen.Fini()
	m := top.NewModel(topScreens(client, announcer, time.Now), every)
	return top.Run(ctx, screen, m, func(ctx context.Context) (top.Head, error) { return topHead(ctx, client) })
}

// topHead describes the gateway in a line.
func topHead(ctx context.Context, client *status.Client) (top.Head, error) {
	v, err := client.Status(ctx, false)
	if err != nil {
		return top.Head{}, err
	}
	h := top.Head{Text: v.Node + " " + v.Version.Version}
	switch {
	case v.Draining:
		h.Text, h.Urgent = h.Text+", draining", true
	case !v.Ready:
		h.Text, h.Urgent = h.Text+", NOT READY", true
	default:
		h.Text += ", ready"
	}
	if n := attention(&v); n > 0 {
		h.Text += fmt.Sprintf(", %d to look at (1)", n)
		h.Urgent = true
	}
	return h, nil
}

// attention returns the number of problems and conditions that need an operator.
func attention(v *status.StatusView) (n int) {
	for _, c := range v.Conditions {
		if c.Level != "ok" {
			n++
		}
	}
	for _, p := range v.Problems {
		if !p.Warning {
			n++
		}
	}
	if v.Config.Error != "" {
		n++
	}
	return n
}
