package cli

import (
	"context"
	"fmt"
	"net/netip"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/gateway/ui"
	"sluice.dev/sluice/serve/status"
)

// loopbackFlag is a flag that takes an address and port of the loopback.
type loopbackFlag struct{ netip.AddrPort }

// Type names the flag's values in help.
func (f *loopbackFlag) Type() string { return "address" }

// Set implements pflag.Value, as String of netip.AddrPort does.
func (f *loopbackFlag) Set(s string) (err error) {
	f.AddrPort, err = ui.ParseAddress(s)
	return err
}

func (s *session) uiCommand() *cobra.Command {
	listen := loopbackFlag{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 9475)}
	c := &cobra.Command{
		Use:   "ui",
		Short: "Show the gateway live in a browser, on this machine's loopback",
		Long: "ui serves a page about the gateway: the node with charts, Services and their backends, flows,\n" +
			"drops, events, and the path of a packet. It changes nothing, listens on the loopback alone, and ends\n" +
			"with Ctrl-C, or when its standard input or output is closed at the other end. Open the URL that it\n" +
			"prints: the secret in it keeps other users of the machine out, and is new with each start.",
		Example: "  sluice ui\n" +
			"  sluice ui --listen 127.0.0.1:0",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return s.ui(c.Context(), listen.AddrPort) },
	}
	c.Flags().Var(&listen, "listen", "loopback address and port of the page; port 0: any free one")
	return c
}

func (s *session) ui(ctx context.Context, address netip.AddrPort) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, left := s.attached(ctx, s.app.In)
	defer left()
	client := status.NewClient(s.socket)
	if _, err := client.Status(ctx, false); err != nil {
		return err // a page without a gateway shows nothing
	}
	server, err := ui.New(client)
	if err != nil {
		return err
	}
	l, err := ui.Listen(address)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(s.app.Out, server.URL(l)); err != nil {
		l.Close()
		return err
	}
	s.note("Open this URL in a browser on this machine, or forward the port first (ssh -L). Ctrl-C ends it.")
	return server.Serve(ctx, l)
}
