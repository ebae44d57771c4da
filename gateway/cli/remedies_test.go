package cli

import (
	"context"
	"io"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/gateway/doctor"
	"sluice.dev/sluice/gateway/nodetunnel"
	"sluice.dev/sluice/nat/vxlan"
)

// TestTunnelRemedies: the commands that findings about the tunnel advise run as they are printed,
// and are for the tunnel that was examined.
func TestTunnelRemedies(t *testing.T) {
	tunnel := vxlan.Tunnel{VNI: 20942, Port: 4790}
	c := config.Default()
	c.DirectReturn.VNI, c.DirectReturn.Port = 20942, 4790
	list := nodetunnel.Check(t.Context(), &nodetunnel.Config{Tunnel: tunnel}) // this host is no node
	list = append(list, doctor.Examine(&doctor.Facts{Config: c,
		Tunnel: []doctor.TunnelNode{{Addr: netip.MustParseAddr("192.0.2.1"), Closed: true}}})...)
	var applied, checked int
	app := App{Out: io.Discard, Err: io.Discard, Node: NodeCommands{
		Apply: func(c *nodetunnel.Config) ([]string, error) {
			applied++
			if c.Tunnel != tunnel || len(c.Gateways) != 1 {
				t.Errorf("applied %+v", c)
			}
			return nil, nil
		},
		Check: func(_ context.Context, of *nodetunnel.Config) []doctor.Finding {
			checked++
			if of.Tunnel != tunnel {
				t.Errorf("checked %+v", of)
			}
			return nil
		},
	}}
	for _, f := range list {
		for _, m := range regexp.MustCompile("`sluice (node [^`]+)`").FindAllStringSubmatch(f.Do, -1) {
			args := strings.Fields(strings.ReplaceAll(m[1], "ADDRESS", "192.0.2.9"))
			if code := app.Main(t.Context(), args); code != exitOK {
				t.Errorf("%s %s: sluice %s: exit %d", f.Check, f.Subject, m[1], code)
			}
		}
	}
	if applied < 2 || checked == 0 {
		t.Errorf("%d commands that apply, %d that check, of %d findings", applied, checked, len(list))
	}
}
