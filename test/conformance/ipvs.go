package conformance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/test/bed/machine"
)

// ipvsOptions is more of kube-proxy's configuration in mode ipvs. It would write everything anew
// every 30 seconds, which finds nothing to repair here and takes an emulated processor longer than
// that. Flows of UDP that cases keep open must outlive its rounds: IPVS ends them after 5 minutes
// of silence, conntrack after 2.
func ipvsOptions() string {
	return fmt.Sprintf("ipvs: {syncPeriod: 1h, udpTimeout: %s}\nconntrack: {maxPerCore: 0, udpStreamTimeout: %s}\n",
		udpTimeout(), machine.Slower(2*time.Minute))
}

// udpTimeout is Sluice's default for flows of UDP that were answered, longer where rounds take
// longer.
func udpTimeout() time.Duration { return machine.Slower(5 * time.Minute) }

// elsewhereDecided lists sections that kube-proxy's modes do not decide, each with the component
// that does.
var elsewhereDecided = map[string]string{
	"EndpointSlice":          "`pkg/proxy` chooses endpoints for all modes alike",
	"Choosing a backend":     "annotations of Sluice's",
	healthSection:            "`pkg/proxy/healthcheck` serves all modes alike",
	"Node and configuration": "Sluice's configuration, and what `pkg/proxy` reads of the Node for all modes alike",
}

// healthSection is the section of a case that has any row in it. Other cases are of the section of
// their first row.
const healthSection = "Health"

// Other reasons not to run a case.
const (
	whyAlone     = "changes what all cases share: kube-proxy would write everything anew for one case"
	whyTimed     = "measures time, and the processor is emulated"
	whyUnlikely  = "not tried: a difference was thought more likely in those that are"
	whyNoneAsked = "no probe that kube-proxy is asked"
)

// leftOut returns why a case is not run with kube-proxy in a mode; empty if it is. Mode ipvs has a
// subset, for it runs in a guest whose processor is emulated (docs/conformance.md).
func (c *Case) leftOut(mode string) string {
	if mode != ipvs {
		return ""
	}
	for i, row := range c.Rows {
		section, _, _ := strings.Cut(row, "/")
		if why := elsewhereDecided[section]; why != "" && (i == 0 || section == healthSection) {
			return why
		}
	}
	asked := 0
	for _, s := range c.steps {
		if s.alone {
			return whyAlone
		}
		for _, p := range s.probes {
			if p.slow > 0 || p.every > 0 {
				return whyTimed
			}
			if p.unasked == "" {
				asked++
			}
		}
	}
	if asked == 0 {
		return whyNoneAsked
	}
	if !slices.Contains(ipvsCases, c.ID()) {
		return whyUnlikely
	}
	return ""
}

// ipvsCases are the other cases in which mode ipvs is most likely to differ: by its construction
// (pkg/proxy/ipvs/proxier.go), or because other modes differ.
var ipvsCases = []string{
	"Service/... with an address of this node in it/vip-as-source",
	"Where kube-proxy's modes disagree/source not allowed, and no endpoints/drop",
	"Service/externalTrafficPolicy/cluster",
	"Service/externalTrafficPolicy/local",
	"Service/externalTrafficPolicy/local-none-here",
	"Service/... Local, and the client is a pod/pods-skip-the-policy",
	"Service/internalTrafficPolicy/local",
	"Service/internalTrafficPolicy/local-none-here",
	"Established flows/endpoint removed/udp-moves",
	"Established flows/service goes to zero endpoints/slice-empty",
	"Service/any of it changes/port",
	"Service/any of it changes/vip",
	"Established flows/service deleted/service-deleted",
	"Different on purpose/UDP flows of an endpoint that is ready and not serving stay/udp",
	"Service/sessionAffinity: ClientIP/one-backend",
	"Service/sessionAffinity: ClientIP/policy-local",
	"Whose address/a client that is the very endpoint it got/pod-elsewhere",
	"Where kube-proxy's modes disagree/node port without endpoints, on a local address that is not selected/pass",
	"Where kube-proxy's modes disagree/node port on a VIP that is a local address/not-selected",
	"Where kube-proxy's modes disagree/unknown port of a ClusterIP, unused ClusterIP/default",
	"Where kube-proxy's modes disagree/unknown port of a VIP/default",
	"Different on purpose/VIPs answer ping/ping",
	"Different on purpose/A frontend among the gateway's own source ports/refused",
}
