package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/gateway/doctor"
	"sluice.dev/sluice/gateway/nodetunnel"
	"sluice.dev/sluice/internal/logs"
	"sluice.dev/sluice/nat/vxlan"
)

// NodeCommands are the functions of package nodetunnel.
type NodeCommands struct {
	Apply  func(*nodetunnel.Config) (changed []string, err error)
	Run    func(ctx context.Context, c *nodetunnel.Config, report func(line string)) error
	Check  func(context.Context, *nodetunnel.Config) []doctor.Finding
	Remove func() (removed []string, err error)
}

// nodeView is the result of apply and remove.
type nodeView struct {
	Changed []string `json:"changed"`
}

func (s *session) nodeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "node",
		Short: "Prepare a node with endpoints for direct return",
		Long: "node makes the end of the gateways' tunnel on a node that has endpoints of Services with direct\n" +
			"return (annotation sluice.dev/forwarding: direct). It runs on that node, not on a gateway, needs\n" +
			"CAP_NET_ADMIN, and asks neither the daemon nor the API server.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(s.nodeApplyCommand(), s.nodeRunCommand(), s.nodeCheckCommand(), s.nodeRemoveCommand())
	return c
}

// tunnelFlags adds the flags of a tunnel.
func tunnelFlags(c *cobra.Command) *vxlan.Tunnel {
	t := &vxlan.Tunnel{}
	c.Flags().Uint32Var(&t.VNI, "vni", 0, "network identifier: directReturn.vni of the gateways")
	c.Flags().Uint16Var(&t.Port, "port", vxlan.Port, "UDP port: directReturn.port of the gateways")
	return t
}

func checkTunnel(t *vxlan.Tunnel) error {
	switch {
	case t.VNI == 0 || t.VNI >= 1<<24:
		return usageError{fmt.Errorf("--vni is %d: give a number from 1 to %d", t.VNI, 1<<24-1)}
	case t.Port == 0:
		return usageError{errors.New("--port is 0: give a UDP port")}
	}
	return nil
}

func (s *session) nodeApplyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "apply --vni N --gateway ADDRESS...",
		Short: "Make the tunnel's devices and firewall, or correct them",
		Long: "apply makes the devices sluice-dsr and sluice-dsr6 and the nftables table sluice_node, which admits\n" +
			"tunnel packets from the gateways only. It replaces differing ones, and may run at any time: run it\n" +
			"again when gateways change, and after a reboot.",
		Example: "  sluice node apply --vni 20942 --gateway 10.0.1.2 --gateway 10.0.2.0/28",
		Args:    cobra.NoArgs,
	}
	config := nodeFlags(c, true)
	c.RunE = func(*cobra.Command, []string) error {
		cfg, err := config()
		if err != nil {
			return err
		}
		changed, err := s.app.Node.Apply(cfg)
		return errors.Join(s.printNode(changed, "applied"), err)
	}
	return c
}

func (s *session) nodeRunCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "run --vni N --gateway ADDRESS...",
		Short: "Keep the tunnel until SIGTERM, then remove it: for a DaemonSet or a systemd unit",
		Long: "run does what apply does, and corrects the tunnel if another program changes it. On SIGTERM it\n" +
			"removes the tunnel after 7 s, unless another run takes it over in that time.",
		Args: cobra.NoArgs,
	}
	config := nodeFlags(c, true)
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := config()
		if err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		logs.Queue() // also: a reader that has gone must not end the process, and so leave the tunnel
		out := logs.NewWriter(s.app.Out)
		out.Queue()
		defer out.Flush(logs.FlushTimeout)
		return s.app.Node.Run(ctx, cfg, func(line string) { fmt.Fprintln(out, line) })
	}
	return c
}

// nodeFlags adds the flags of apply, run and check, and returns a function that reads them.
func nodeFlags(c *cobra.Command, needGateways bool) func() (*nodetunnel.Config, error) {
	t := tunnelFlags(c)
	var gateways []string
	c.Flags().StringSliceVar(&gateways, "gateway", nil, "address or prefix that gateways send from; may be repeated")
	return func() (*nodetunnel.Config, error) {
		if err := checkTunnel(t); err != nil {
			return nil, err
		}
		if len(gateways) == 0 && needGateways {
			return nil, usageError{errors.New("--gateway is missing: without one the node drops all packets of the " +
				"tunnel")}
		}
		cfg := &nodetunnel.Config{Tunnel: *t}
		for _, text := range gateways {
			p, err := parseGateway(text)
			if err != nil {
				return nil, usageError{fmt.Errorf("--gateway %q is neither an address nor a prefix", text)}
			}
			cfg.Gateways = append(cfg.Gateways, p)
		}
		return cfg, nil
	}
}

func parseGateway(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(strings.TrimSpace(text)); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
	}
	return netip.ParsePrefix(strings.TrimSpace(text))
}

func (s *session) nodeCheckCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "check --vni N [--gateway ADDRESS...]",
		Short: "Check whether packets of the gateways' tunnel reach pods of this node",
		Long: "check examines devices, rp_filter, forwarding, firewall and kube-proxy of this node, and prints a\n" +
			"remedy for each finding. With --gateway, the firewall must admit these gateways and no others. It\n" +
			"changes nothing.",
		Args: cobra.NoArgs,
	}
	config := nodeFlags(c, false)
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := config()
		if err != nil {
			return err
		}
		findings := s.app.Node.Check(c.Context(), cfg)
		if err := s.print(findings, func(r *rows) { findingRows(r, findings) }); err != nil {
			return err
		}
		if doctor.Failed(findings) {
			return errors.New("a check failed: see the lines with level fail")
		}
		return nil
	}
	return c
}

func (s *session) nodeRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "remove",
		Short: "Remove the tunnel's devices and firewall",
		Long:  "remove deletes the devices and the table that apply has made.",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			removed, err := s.app.Node.Remove()
			return errors.Join(s.printNode(removed, "removed"), err)
		},
	}
}

func (s *session) printNode(changed []string, did string) error {
	v := nodeView{Changed: append([]string{}, changed...)}
	return s.print(v, func(r *rows) {
		for _, what := range v.Changed {
			r.line(did + ": " + what)
		}
		if len(v.Changed) == 0 {
			r.line("Nothing was " + did + ".")
		}
	})
}
