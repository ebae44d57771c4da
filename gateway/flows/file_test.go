package flows

import (
	"testing"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/flowtable"
)

// TestTableConfig: the table has the settings, and for what is no setting the profile's timeouts.
func TestTableConfig(t *testing.T) {
	const header = "apiVersion: sluice.dev/v1alpha1\nkind: GatewayConfiguration\ninterfaces: [{name: eth0}]\n"
	const v4, v6 = 1 << 20, 1 << 18
	changed := flowtable.RFCTimeouts()
	changed.Established, changed.Fin, changed.TimeWaitBackend = time.Hour, 2*time.Second, 3*time.Second
	changed.UDPUnreplied, changed.UDPReplied = 4*time.Second, 5*time.Second
	for _, tt := range []struct {
		name, text string
		want       flowtable.Config
	}{
		{"defaults", "", flowtable.Config{IPv4Flows: v4, IPv6Flows: v6, HalfOpen: 163840,
			Timeouts: flowtable.DefaultTimeouts()}},
		{"profile", "flows: {profile: rfc}", flowtable.Config{IPv4Flows: v4, IPv6Flows: v6, HalfOpen: 163840,
			Timeouts: flowtable.RFCTimeouts()}},
		{"all timeouts that are settings",
			"flows: {profile: rfc, timeouts: {established: 1h, finWait: 2s, udpUnreplied: 4s, udpReplied: 5s}}\n" +
				"tuning: {timeWaitBackend: 3s}", flowtable.Config{IPv4Flows: v4, IPv6Flows: v6, HalfOpen: 163840,
				Timeouts: changed}},
		{"few flows", "flows: {ipv4: 7, ipv6: 0}", flowtable.Config{IPv4Flows: 7, HalfOpen: 1,
			Timeouts: flowtable.DefaultTimeouts()}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := config.Parse([]byte(header + tt.text))
			if err != nil {
				t.Fatal(err)
			}
			tt.want.LimitSources = 1 << 16
			if got := TableConfig(c); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}
